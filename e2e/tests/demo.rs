//! The demo, as anybody runs it.

use tokio::process::Command;

use crate::world::BELAY;

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_and_nothing_is_repeated() {
    let output = Command::new(BELAY)
        .args(["demo", "--rollouts", "32", "--json"])
        .output()
        .await
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    let told: serde_json::Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {stderr}"));
    assert!(output.status.success(), "{told} {stderr}");
    for zero in [
        "lost",
        "done_twice",
        "model_calls_repeated",
        "tool_effects_repeated",
    ] {
        assert_eq!(told[zero], 0, "{zero}: {told}");
    }
    assert_eq!(
        (&told["rollouts"], &told["finished_before"], &told["continued"]),
        (&32.into(), &4.into(), &28.into())
    );
    assert!(told["tokens_saved"].as_u64().unwrap() > 0, "{told}");
    assert!(
        told["stall_ms"].as_f64().unwrap() > 0.0 && told["restore_ms"].as_f64().unwrap() > 0.0,
        "{told}"
    );
    assert_eq!(told["killed"].as_array().unwrap().len(), 7, "{told}");
}
