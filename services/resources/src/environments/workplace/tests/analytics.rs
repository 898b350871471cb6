//! The analytics tools.

use serde_json::json;

use super::Desk;

#[test]
fn visits_are_read_and_counted() {
    let mut desk = Desk::new();
    let get = "analytics_get_visitor_information_by_id";
    desk.says(
        get,
        json!({"visitor_id": "0907"}),
        json!([{"date_of_visit": "2023-11-27", "visitor_id": "0907", "page_views": "1",
                "session_duration_seconds": "1", "traffic_source": "direct", "user_engaged": false}]),
    );
    desk.refuses(get, json!({"visitor_id": "1"}), "Visitor not found.");
    desk.refuses(get, json!({}), "Visitor ID not provided.");

    let days = json!({"time_min": "2023-11-28", "time_max": "2023-11-29"});
    for (tool, expected) in [
        ("total_visits_count", json!({"2023-11-28": 2, "2023-11-29": 1})),
        ("engaged_users_count", json!({"2023-11-28": 2, "2023-11-29": 0})),
        ("traffic_source_count", json!({"2023-11-28": 2, "2023-11-29": 1})),
        (
            "get_average_session_duration",
            json!({"2023-11-28": 152.0, "2023-11-29": 9.0}),
        ),
    ] {
        desk.says(&format!("analytics_{tool}"), days.clone(), expected);
        let none = json!({"time_min": "2024-01-01"});
        desk.says(&format!("analytics_{tool}"), none, json!({}));
        let all = desk.finds(&format!("analytics_{tool}"), json!({}));
        assert_eq!(all.as_object().unwrap().len(), 11, "{tool}");
    }
    let direct = json!({"time_min": "2023-11-28", "time_max": "2023-11-29", "traffic_source": "direct"});
    let counts = json!({"2023-11-28": 1, "2023-11-29": 1});
    desk.says("analytics_traffic_source_count", direct, counts);
}

#[test]
fn plots_are_listed() {
    let mut desk = Desk::new();
    let plot = "analytics_create_plot";
    let asked = |from: &str, to: &str, value: &str, kind: &str| json!({"time_min": from, "time_max": to, "value_to_plot": value, "plot_type": kind});
    let file = "plots/2023-11-01_2023-11-30_user_engaged_line.png";
    desk.says(
        plot,
        asked("2023-11-01", "2023-11-30", "user_engaged", "line"),
        json!(file),
    );
    assert_eq!(*desk.1.plots, [file]);
    desk.refuses(
        plot,
        asked("", "b", "user_engaged", "line"),
        "Start date not provided.",
    );
    desk.refuses(
        plot,
        asked("a", "", "user_engaged", "line"),
        "End date not provided.",
    );
    desk.refuses(
        plot,
        asked("a", "b", "visits", "line"),
        "Value to plot must be one of 'total_visits', 'session_duration_seconds', 'user_engaged', 'visits_direct', \
         'visits_referral', 'visits_search_engine', 'visits_social_media'",
    );
    desk.refuses(
        plot,
        asked("a", "b", "total_visits", "pie"),
        "Plot type must be one of 'bar', 'line', 'scatter', or 'histogram'",
    );
}
