//! Bad input: one line that names the thing and the remedy, a status that is not 0, nothing half done.

use std::{path::Path, process::Output};

use belay_core::refusal::Reason;
use belay_mesh::{config::Engine, status::IntoRefusal as _};
use belay_proto::{
    checkpoint::CoordinatorStatusRequest,
    episode::{Expect, RunRequest},
};
use tokio::{net::TcpListener, process::Command};

use crate::world::{BELAY, World, counter_task, episode};

async fn belay(world: Option<&World>, args: &[&str]) -> Output {
    let mut command = Command::new(BELAY);
    command.args(args).env("RUST_LOG", "off");
    if let Some(world) = world {
        command.env("BELAY_MESH", world.mesh.spec().mesh_file());
    }
    command.output().await.unwrap()
}

/// The one line on standard error of a command that must fail.
fn one_line(output: &Output) -> String {
    assert!(!output.status.success(), "it must fail: {output:?}");
    let text = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    assert_eq!(text.lines().count(), 1, "one line: {text}");
    text
}

fn says(line: &str, words: &[&str]) {
    for word in words {
        assert!(line.contains(word), "{line:?} should name {word:?}");
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn of_the_command_line_without_a_mesh() {
    let dir = tempfile::tempdir().unwrap();
    let nowhere = dir.path().join("mesh.json");
    let line = one_line(&belay(None, &["status", "--mesh", text(&nowhere)]).await);
    says(&line, &["no mesh is up", text(&nowhere), "belay up"]);

    let line = one_line(&belay(None, &["status", "--coordinator", "127.0.0.1:1"]).await);
    says(&line, &["coordinator at 127.0.0.1:1 does not answer", "belay up"]);

    let config = dir.path().join("mesh.toml");
    std::fs::write(&config, "deployment = \"x\"\nroots = \"y\"\n").unwrap();
    let up = ["up", "--config", text(&config), "--dir", text(dir.path())];
    says(
        &one_line(&belay(None, &up).await),
        &["mesh.toml: line 2", "roots"],
    );

    let held = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let held = held.local_addr().unwrap().to_string();
    let _listener = TcpListener::bind(&held).await;
    let line = one_line(
        &belay(
            None,
            &["serve", "agent", "--data", "127.0.0.1:0", "--control", &held],
        )
        .await,
    );
    says(&line, &[&held, "cannot be bound", "--control"]);

    let line = one_line(&belay(None, &["serve", "resources", "--name", "chess"]).await);
    says(&line, &["resources/chess/0", "resources/counter/0"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_task_files() {
    let world = World::start().await;
    let dir = tempfile::tempdir().unwrap();
    let (tasks, out) = (dir.path().join("tasks.jsonl"), dir.path().join("out.jsonl"));
    let good = counter_task("r");
    std::fs::write(&tasks, format!("{good}\n{{\"x\": 1}}\nnot json\n{good}\n")).unwrap();
    let run = [
        "rollout",
        "--tasks",
        text(&tasks),
        "--out",
        text(&out),
        "--environment",
    ];
    let output = belay(Some(&world), &[&run[..], &["counter"]].concat()).await;
    assert!(!output.status.success(), "a bad row is no success");
    let stderr = String::from_utf8_lossy(&output.stderr);
    says(
        &stderr,
        &[
            "line 2: responses_create_params: is missing",
            "line 3: is not a JSON object",
        ],
    );
    let results = std::fs::read_to_string(&out).unwrap();
    assert_eq!(results.lines().count(), 2, "the good rows have run: {results}");
    assert!(
        results.lines().all(|line| line.contains("\"reward\":1.0")),
        "{results}"
    );

    let line = one_line(
        &belay(
            Some(&world),
            &["rollout", "--tasks", "/nowhere/x", "--out", text(&out)],
        )
        .await,
    );
    says(&line, &["/nowhere/x", "cannot be read"]);

    std::fs::write(&tasks, &good).unwrap();
    let line = one_line(&belay(Some(&world), &[&run[..], &["counter"]].concat()).await);
    says(&line, &["is there already", "--resume", "--overwrite"]);

    let again = [&run[..], &["chess", "--overwrite"]].concat();
    let output = belay(Some(&world), &again).await;
    assert!(!output.status.success());
    let stderr = String::from_utf8_lossy(&output.stderr);
    says(
        &stderr,
        &["environment: \"chess\" is none of this mesh's: counter, synonyms, weather"],
    );
    assert_eq!(
        std::fs::read_to_string(&out).unwrap(),
        results,
        "the results are as they were"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn of_run_calls() {
    let world = World::start().await;
    let request = |id: &str, environment: &str, task: &str| RunRequest {
        episode: Some(episode(id, 0)),
        environment: environment.into(),
        task: task.to_owned().into(),
        ..Default::default()
    };
    let good = counter_task("r");
    for (request, reason, names) in [
        (request("a/b", "counter", &good), Reason::InvalidId, "a/b"),
        (request("a", "chess", &good), Reason::InvalidRequest, "counter"),
        (request("a", "counter", "[]"), Reason::InvalidRequest, "task"),
        (
            request("a", "counter", "{}"),
            Reason::InvalidRequest,
            "responses_create_params",
        ),
    ] {
        let refusal = world.environment().run(request).await.unwrap_err().into_refusal();
        assert_eq!(refusal.reason, reason, "{refusal}");
        says(&refusal.message, &[names]);
    }
    let refusal = world.run("a", 0, Expect::Restored).await.unwrap().unwrap_err();
    assert_eq!(refusal.reason, Reason::NotRestored);
    let mut coordinator = world.mesh.coordinator().unwrap();
    let status = coordinator
        .status(CoordinatorStatusRequest {})
        .await
        .unwrap()
        .into_inner();
    for participant in status.participants {
        let counts = participant.status.unwrap().counts;
        assert!(counts.values().all(|n| *n == 0), "nothing is left: {counts:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_nobody_answers_at_is_named() {
    let world = World::start_with(|config| {
        config.engine = Engine::StagingWorker {
            address: "127.0.0.1:1".into(),
            model: None,
        };
        config.limits.patience_seconds = 1;
    })
    .await;
    let refusal = world.run("a", 0, Expect::Fresh).await.unwrap().unwrap_err();
    assert_eq!(refusal.reason, Reason::EngineFailed, "{refusal}");
    says(&refusal.message, &["127.0.0.1:1"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_checkpoints_and_restores() {
    let world = World::start().await;
    let line = one_line(&belay(Some(&world), &["restore"]).await);
    says(&line, &["no checkpoint"]);
    let line = one_line(&belay(Some(&world), &["restore", "00000009-00000009"]).await);
    says(&line, &["00000009-00000009"]);
    let line = one_line(&belay(Some(&world), &["restore", "../x"]).await);
    says(&line, &["../x", "EEEEEEEE-SSSSSSSS"]);
    let line = one_line(&belay(Some(&world), &["retire", "a/b"]).await);
    says(&line, &["a/b"]);

    // A root that cannot be written: it is a file now.
    let root = world.mesh.spec().config.root.clone();
    let aside = root.with_extension("aside");
    std::fs::rename(&root, &aside).unwrap();
    std::fs::write(&root, "not a directory").unwrap();
    let line = one_line(&belay(Some(&world), &["checkpoint"]).await);
    says(&line, &["STORAGE", text(&root)]);
    world
        .mesh
        .wait_open(crate::world::BOUND)
        .await
        .expect("the mesh goes on");
    std::fs::remove_file(&root).unwrap();
    std::fs::rename(&aside, &root).unwrap();
    let output = belay(Some(&world), &["checkpoint", "--json"]).await;
    assert!(
        output.status.success(),
        "the next one works once the root can be written: {output:?}"
    );
}
