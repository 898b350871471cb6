//! Children that are shells: what is seen of their beginning and their end.
#![allow(missing_docs)]

use std::{io::Read as _, path::Path, time::Duration};

use belay_local_mesh::{
    Exit, LocalMeshError,
    process::{Died, Launch, Process},
    ready::Ready,
};
use tokio::sync::broadcast;

const BOUND: Duration = Duration::from_secs(20);
const READY: &str = r#"echo '{"backend":"127.0.0.1:1","pid":1}'"#;

fn shell(dir: &Path, script: &str) -> Launch {
    Launch {
        label: "a-shell".into(),
        program: "/bin/sh".into(),
        args: vec!["-c".into(), script.into()],
        env: vec![("GREETING".into(), "hello".into())],
        log: dir.join("logs/a-shell.log"),
        ready_bound: BOUND,
    }
}

fn ends() -> (broadcast::Sender<Died>, broadcast::Receiver<Died>) {
    broadcast::channel(16)
}

#[tokio::test]
async fn a_ready_child_is_killed_with_its_group_and_its_exit_is_seen() {
    let dir = tempfile::tempdir().expect("a directory");
    let (sender, mut died) = ends();
    // The grandchild holds the pipe's other end: it is gone when the pipe is.
    let pipe = dir.path().join("pipe");
    let script = format!(
        "mkfifo {0}; (exec 3>{0}; sleep 1000) & {READY}; echo $GREETING >&2; sleep 1000",
        pipe.display()
    );
    let (child, ready) = Process::start(&shell(dir.path(), &script), sender)
        .await
        .expect("ready");
    assert!(matches!(ready, Ready::Backend { .. }));
    // Opens when the grandchild has opened its end.
    let open = tokio::task::spawn_blocking(move || std::fs::File::open(pipe));
    let open = tokio::time::timeout(BOUND, open)
        .await
        .expect("in time")
        .expect("no panic");
    let mut open = open.expect("a pipe");
    assert_eq!(child.kill().await.expect("killed"), Exit::Signal(9));
    let gone = tokio::task::spawn_blocking(move || open.read(&mut [0; 8]));
    let read = tokio::time::timeout(BOUND, gone)
        .await
        .expect("the group is gone");
    assert_eq!(read.expect("no panic").expect("read"), 0);
    let died = died.recv().await.expect("told");
    assert_eq!(
        (died.label.as_str(), died.exit, died.expected, died.pid),
        ("a-shell", Exit::Signal(9), true, child.pid())
    );
    assert_eq!(died.tail.lines, ["hello"]);
    assert_eq!(child.kill().await.expect("again"), Exit::Signal(9));
}

#[tokio::test]
async fn a_child_that_dies_by_itself_is_told_with_its_last_words() {
    let dir = tempfile::tempdir().expect("a directory");
    let (sender, mut died) = ends();
    let script = format!("{READY}; read line; echo 'disk on fire' >&2; kill -SEGV $$");
    let (child, _) = Process::start(&shell(dir.path(), &script), sender)
        .await
        .expect("ready");
    assert_eq!(child.exit(), None);
    // `read` waits for stdin, which is held open: nothing but a signal ends it.
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(child.pid().cast_signed()).expect("a pid"),
        rustix::process::Signal::SEGV,
    )
    .expect("sent");
    let died = tokio::time::timeout(BOUND, died.recv())
        .await
        .expect("in time")
        .expect("told");
    assert_eq!((died.exit, died.expected), (Exit::Signal(11), false));
    assert_eq!(died.exit.to_string(), "signal 11 (SIGSEGV)");
}

#[tokio::test]
async fn a_failed_start_says_why() {
    let dir = tempfile::tempdir().expect("a directory");
    let start = async |script: &str, bound: Duration| {
        let mut launch = shell(dir.path(), script);
        launch.ready_bound = bound;
        let error = Process::start(&launch, ends().0).await.expect_err("it fails");
        (error.to_string(), error)
    };
    let (text, error) = start("echo 'port in use' >&2; exit 3", BOUND).await;
    assert!(
        matches!(
            error,
            LocalMeshError::EndedEarly {
                exit: Exit::Status(3),
                ..
            }
        ),
        "{text}"
    );
    assert!(text.ends_with("\n    port in use"), "{text}");
    let (text, error) = start("echo hello; sleep 1000", BOUND).await;
    assert!(matches!(error, LocalMeshError::NoReadyLine { .. }), "{text}");
    let (text, error) = start("sleep 1000", Duration::from_millis(50)).await;
    assert!(matches!(error, LocalMeshError::NotReady { .. }), "{text}");
    let mut nowhere = shell(dir.path(), "");
    nowhere.program = "/nowhere/belay".into();
    let error = Process::start(&nowhere, ends().0).await.expect_err("it fails");
    assert!(
        error
            .to_string()
            .starts_with("a-shell: /nowhere/belay cannot be started"),
        "{error}"
    );
}

#[tokio::test]
async fn a_stop_is_asked_for_first_and_forced_after_its_bound() {
    let dir = tempfile::tempdir().expect("a directory");
    let start = async |script: String| {
        let launch = shell(dir.path(), &script);
        Process::start(&launch, ends().0).await.expect("ready").0
    };
    let polite = start(format!(
        "trap 'exit 7' TERM; {READY}; while :; do sleep 0.01; done"
    ))
    .await;
    assert_eq!(polite.stop(BOUND).await.expect("stopped"), Exit::Status(7));
    let stubborn = start(format!("trap '' TERM; {READY}; while :; do sleep 0.01; done")).await;
    assert_eq!(
        stubborn.stop(Duration::from_millis(50)).await.expect("killed"),
        Exit::Signal(9)
    );
    let paused = start(format!(
        "trap 'exit 7' TERM; {READY}; while :; do sleep 0.01; done"
    ))
    .await;
    paused.pause().expect("paused");
    let term = paused.stop(Duration::from_millis(50));
    assert_eq!(
        term.await.expect("killed"),
        Exit::Signal(9),
        "a paused process hears no SIGTERM"
    );
}

#[tokio::test]
async fn a_child_that_watches_its_stdin_ends_when_it_is_left() {
    let dir = tempfile::tempdir().expect("a directory");
    let (sender, mut died) = ends();
    let script = format!("{READY}; cat >/dev/null");
    let (child, _) = Process::start(&shell(dir.path(), &script), sender)
        .await
        .expect("ready");
    drop(child);
    tokio::time::timeout(BOUND, died.recv())
        .await
        .expect("in time")
        .expect("it ended");
}
