//! A mesh of shells that say what `belay serve` says: who is started with what, killed, and started again where it was.
#![allow(missing_docs)]

use std::{os::unix::fs::PermissionsExt as _, path::Path, time::Duration};

use belay_core::ids::Instance;
use belay_local_mesh::{Exit, LocalMesh, LocalMeshError, Spec};
use belay_mesh::config::{Engine, MeshConfig, ResolvedMesh};

const BOUND: Duration = Duration::from_secs(20);

/// Prints a ready line with the addresses that it was given, or new ones, and lives until its stdin ends.
const BELAY: &str = r#"#!/bin/sh
echo "$@" >> "$CALLS"
kind=$2; shift 2
data=127.0.0.1:$$; control=127.0.0.2:$$
while [ $# -gt 0 ]; do
    case $1 in
        --name) name=$2 ;;
        --replica) replica=$2 ;;
        --data) data=$2; given=1 ;;
        --control) control=$2 ;;
        --listen) data=$2 ;;
    esac
    shift
done
[ "$FAIL" = "$kind" ] && { echo "belay: no $kind today" >&2; exit 1; }
[ "$TAKEN" = "$kind" ] && [ -n "$given" ] && { echo "belay: $data is taken" >&2; exit 1; }
case $kind in
    fake-backend) echo "{\"backend\":\"$data\",\"pid\":$$}" ;;
    coordinator) echo "{\"coordinator\":\"$control\",\"pid\":$$}" ;;
    *) echo "{\"instance\":\"$kind/$name/$replica\",\"data\":\"$data\",\"control\":\"$control\",\"pid\":$$}" ;;
esac
exec cat >/dev/null
"#;

fn spec(dir: &Path) -> Spec {
    let program = dir.join("belay");
    std::fs::write(&program, BELAY).expect("written");
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).expect("executable");
    let config = MeshConfig {
        root: dir.join("root"),
        state: dir.join("state"),
        ..MeshConfig::default()
    };
    let mut spec = Spec::new(program, dir.join("mesh"), config);
    spec.env = vec![("CALLS".into(), dir.join("calls").to_string_lossy().into_owned())];
    spec
}

fn addresses(mesh: &LocalMesh) -> Vec<(String, String, String)> {
    let of = |(instance, data, control): (&Instance, &str, &str)| {
        (instance.to_string(), data.into(), control.into())
    };
    mesh.addresses().map(of).collect()
}

#[tokio::test]
async fn the_engine_first_then_the_servers_then_the_coordinator_and_again_where_they_were() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut mesh = LocalMesh::up(spec(dir.path())).await.expect("up");
    let before = addresses(&mesh);
    assert_eq!(before.len(), 6);
    let backend = mesh.backend_address().expect("an engine").to_owned();
    let coordinator = mesh.coordinator_address().expect("a coordinator").to_owned();

    let written = MeshConfig::read(&dir.path().join("mesh/processes.toml")).expect("a configuration");
    assert!(matches!(&written.engine, Engine::StagingWorker { address, .. } if *address == backend));
    let counter: Instance = "resources/counter/0".parse().expect("an instance");
    let effects = written
        .server(&counter)
        .and_then(|server| server.effect_log.clone());
    assert_eq!(effects, Some(format!("http://{backend}/_ctl/effects")));
    let resolved = ResolvedMesh::read(&mesh.spec().mesh_file()).expect("a mesh file");
    assert_eq!(
        (resolved.coordinator.as_str(), resolved.backend.as_deref()),
        (&*coordinator, Some(&*backend))
    );
    assert_eq!(resolved.members.len(), 6);

    let mut deaths = mesh.deaths();
    let killed = mesh.kill_servers().await.expect("killed");
    assert_eq!(killed.len(), 7);
    let mut told = Vec::new();
    while told.len() < 7 {
        let died = tokio::time::timeout(BOUND, deaths.recv())
            .await
            .expect("in time")
            .expect("told");
        assert_eq!((died.exit, died.expected), (Exit::Signal(9), true));
        told.push(died.label);
    }
    told.sort();
    let mut expected = killed;
    expected.sort();
    assert_eq!(told, expected, "the engine lives on");

    mesh.start_servers().await.expect("up again");
    assert_eq!(addresses(&mesh), before);
    assert_eq!(mesh.coordinator_address().expect("a coordinator"), coordinator);
    let calls = std::fs::read_to_string(dir.path().join("calls")).expect("calls");
    let kinds: Vec<_> = calls.lines().filter_map(|line| line.split(' ').nth(1)).collect();
    assert_eq!(kinds.len(), 15);
    assert_eq!(
        (kinds[0], kinds[7], kinds[14]),
        ("fake-backend", "coordinator", "coordinator")
    );
    mesh.stop().await.expect("stopped");
}

#[tokio::test]
async fn one_that_cannot_start_is_named_with_its_last_line_and_takes_the_others_along() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut spec = spec(dir.path());
    spec.env.push(("FAIL".into(), "agent".into()));
    let Err(error) = LocalMesh::up(spec).await else {
        panic!("an agent came up")
    };
    let text = error.to_string();
    assert!(
        matches!(
            error,
            LocalMeshError::EndedEarly {
                exit: Exit::Status(1),
                ..
            }
        ),
        "{text}"
    );
    assert!(
        text.starts_with("agent/default/0 ended before it was ready"),
        "{text}"
    );
    assert!(text.ends_with("belay: no agent today"), "{text}");
}

/// What cannot have its old address any more gets another, and the mesh file says so.
#[tokio::test]
async fn an_address_that_was_taken_meanwhile_is_replaced() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut taken = spec(dir.path());
    taken.env.push(("TAKEN".into(), "agent".into()));
    let mut mesh = LocalMesh::up(taken).await.expect("up");
    mesh.kill_servers().await.expect("killed");
    mesh.start_servers().await.expect("up again");
    let resolved = ResolvedMesh::read(&mesh.spec().mesh_file()).expect("a mesh file");
    let members: Vec<_> = resolved
        .members
        .into_iter()
        .map(|m| (m.instance.to_string(), m.data, m.control))
        .collect();
    let mut now = addresses(&mesh);
    now.sort();
    let mut written = members;
    written.sort();
    assert_eq!(now, written);
    let calls = std::fs::read_to_string(dir.path().join("calls")).expect("calls");
    let agents = calls.lines().filter(|line| line.contains(" agent ")).count();
    assert!(agents > 2, "where it was, in vain, then elsewhere: {calls}");
    mesh.stop().await.expect("stopped");
}

#[tokio::test]
async fn one_server_dies_and_starts_again_alone() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut mesh = LocalMesh::up(spec(dir.path())).await.expect("up");
    let before = addresses(&mesh);
    let agent: Instance = "agent/default/0".parse().expect("an instance");
    let pid = mesh.process(&agent).expect("a process").pid();
    assert_eq!(mesh.kill_server(&agent).await.expect("killed"), Exit::Signal(9));
    mesh.start_server(&agent).await.expect("started");
    assert_ne!(mesh.process(&agent).expect("a process").pid(), pid);
    assert_eq!(addresses(&mesh), before);
    let nobody: Instance = "agent/other/0".parse().expect("an instance");
    assert!(matches!(
        mesh.start_server(&nobody).await,
        Err(LocalMeshError::Unknown(_))
    ));
    mesh.stop().await.expect("stopped");
}
