//! Visits to the company's site. The visits stay as they are; what a call changes is the list of plots.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    session::Session,
    tables::{Column, Row, Rule, Shape},
    tool::{Arguments, Reply, Tool, changed, found, refused},
};

pub(super) static SHAPE: Shape = Shape {
    file: "analytics_data.csv",
    columns: &[
        Column::new("date_of_visit", Rule::Moment),
        Column::new("visitor_id", Rule::Text),
        Column::new("page_views", Rule::Number),
        Column::new("session_duration_seconds", Rule::Number),
        Column::new("traffic_source", Rule::Text),
        Column::new("user_engaged", Rule::Flag),
    ],
};

pub(super) const TOOLS: &[Tool] = &[
    Tool {
        name: "analytics_get_visitor_information_by_id",
        takes: &["visitor_id"],
        run: visitor,
    },
    Tool {
        name: "analytics_create_plot",
        takes: &["time_min", "time_max", "value_to_plot", "plot_type"],
        run: plot,
    },
    Tool {
        name: "analytics_total_visits_count",
        takes: &["time_min", "time_max"],
        run: |session, arguments| count(session, arguments, |_| true),
    },
    Tool {
        name: "analytics_engaged_users_count",
        takes: &["time_min", "time_max"],
        run: |session, arguments| count(session, arguments, |row| row.get("user_engaged") == Some("True")),
    },
    Tool {
        name: "analytics_traffic_source_count",
        takes: &["time_min", "time_max", "traffic_source"],
        run: |session, arguments| {
            let source = arguments.get("traffic_source");
            count(session, arguments, |row| {
                source.is_none() || row.get("traffic_source") == source
            })
        },
    },
    Tool {
        name: "analytics_get_average_session_duration",
        takes: &["time_min", "time_max"],
        run: average_duration,
    },
];

const VALUES: [&str; 7] = [
    "total_visits",
    "session_duration_seconds",
    "user_engaged",
    "visits_direct",
    "visits_referral",
    "visits_search_engine",
    "visits_social_media",
];

fn visitor(session: &Session, arguments: &Arguments) -> Reply {
    let [id] = arguments.all(["visitor_id"], "Visitor ID not provided.")?;
    let rows = session.analytics.rows().iter().map(AsRef::as_ref);
    let visits: Vec<&Row> = rows.filter(|row| row.get("visitor_id") == Some(id)).collect();
    if visits.is_empty() {
        return Err(refused("Visitor not found."));
    }
    found(&visits)
}

fn plot(session: &Session, arguments: &Arguments) -> Reply {
    let [from] = arguments.all(["time_min"], "Start date not provided.")?;
    let [to] = arguments.all(["time_max"], "End date not provided.")?;
    let value = arguments
        .get("value_to_plot")
        .filter(|value| VALUES.contains(value));
    let value =
        value.ok_or_else(|| refused(&format!("Value to plot must be one of '{}'", VALUES.join("', '"))))?;
    let kind = arguments.get("plot_type");
    let kind = kind
        .filter(|kind| ["bar", "line", "scatter", "histogram"].contains(kind))
        .ok_or_else(|| refused("Plot type must be one of 'bar', 'line', 'scatter', or 'histogram'"))?;
    let file = format!("plots/{from}_{to}_{value}_{kind}.png");
    let mut plots = Vec::clone(&session.plots);
    plots.push(file.clone());
    let session = Session {
        plots: Arc::new(plots),
        ..session.clone()
    };
    changed(&file, session)
}

/// The visits from `time_min` to `time_max`, each under its day.
fn visits<'a>(session: &'a Session, arguments: &'a Arguments) -> impl Iterator<Item = (&'a str, &'a Row)> {
    let (from, to) = (arguments.get("time_min"), arguments.get("time_max"));
    let rows = session.analytics.rows().iter();
    rows.filter_map(move |row| {
        let day = row.get("date_of_visit")?;
        let within = from.is_none_or(|from| day >= from) && to.is_none_or(|to| day <= to);
        within.then_some((day, &**row))
    })
}

/// For each day with visits, how many there were of a kind.
fn count(session: &Session, arguments: &Arguments, of: impl Fn(&Row) -> bool) -> Reply {
    let mut days = BTreeMap::<_, u64>::new();
    for (day, visit) in visits(session, arguments) {
        *days.entry(day).or_default() += u64::from(of(visit));
    }
    found(&days)
}

fn average_duration(session: &Session, arguments: &Arguments) -> Reply {
    let mut days = BTreeMap::<_, (f64, f64)>::new();
    for (day, visit) in visits(session, arguments) {
        let seconds = visit
            .get("session_duration_seconds")
            .and_then(|s| s.trim().parse::<f64>().ok());
        let (sum, count) = days.entry(day).or_default();
        *sum += seconds.unwrap_or_default();
        *count += 1.0;
    }
    let averages = days.into_iter().map(|(day, (sum, count))| (day, sum / count));
    found(&averages.collect::<BTreeMap<_, _>>())
}
