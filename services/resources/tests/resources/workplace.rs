//! The built-in `workplace` behind a server: what a start with wrong tables says, and a session through a checkpoint.

use std::path::{Path, PathBuf};

use belay_core::refusal::Reason;
use belay_proto::checkpoint::Decision;
use belay_resources::{environments::Workplace, serve};

use super::*;
use crate::control::{RESTORE, RUN};

const TASK: &str = r#"{"responses_create_params": {}, "ground_truth": [
    {"name": "email_reply_email", "arguments": "{\"email_id\": \"00000008\", \"body\": \"Thanks\"}"}]}"#;

/// The environment's own tables, in a directory.
fn tables(root: &TempDir) -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/environments/workplace/tables");
    let copy = root.path().join("tables");
    std::fs::create_dir(&copy).expect("a new directory");
    for file in std::fs::read_dir(own).expect("the tables") {
        let file = file.expect("a file");
        std::fs::copy(file.path(), copy.join(file.file_name())).expect("a copy");
    }
    copy
}

/// Why a server does not start.
async fn refusal(root: &TempDir, builtin: &str, tables: &Path) -> String {
    let listeners = Listeners::bind("127.0.0.1:0", "127.0.0.1:0")
        .await
        .expect("free ports");
    let mut config = ResourcesConfig::new(ServerCommon::new(me(), root.path(), "test"), builtin);
    config.tables = Some(tables.into());
    let served = serve(config, listeners, Shutdown::new());
    let served = tokio::time::timeout(PATIENCE, served).await;
    served
        .expect("it ends at once")
        .expect_err("no start")
        .to_string()
}

async fn seed(server: &Server, life: &Life) {
    let request = pb::SeedRequest {
        r#ref: life.wire(),
        task: TASK.into(),
    };
    server.client.clone().seed(request).await.expect("a reply");
}

const REPLY: (&str, &str) = (
    "email_reply_email",
    r#"{"email_id": "00000008", "body": "Thanks"}"#,
);
const DELETE: (&str, &str) = ("email_delete_email", r#"{"email_id": "00000001"}"#);

async fn call(server: &Server, life: &Life, index: u32, (name, arguments): (&str, &str)) -> String {
    let reply = server
        .call(life, (0, index), name, arguments)
        .await
        .expect("a reply");
    String::from_utf8(reply.output.to_vec()).expect("text")
}

#[tokio::test]
async fn tables_that_cannot_be_used_end_the_start_in_one_line() {
    let root = tempfile::tempdir().unwrap();
    let tables = tables(&root);
    let other = refusal(&root, "counter", &tables).await;
    assert!(other.starts_with("\"counter\" has no tables"), "{other}");
    std::fs::write(tables.join("emails.csv"), "email_id,subject\n").unwrap();
    let column = refusal(&root, "workplace", &tables).await;
    assert!(
        column.ends_with(r#"emails.csv, line 1, column "inbox/outbox": this column is missing"#),
        "{column}"
    );
    std::fs::remove_file(tables.join("emails.csv")).unwrap();
    let file = refusal(&root, "workplace", &tables).await;
    assert!(file.contains("emails.csv: cannot be read"), "{file}");
    for line in [other, column, file] {
        assert_eq!(line.lines().count(), 1, "{line}");
    }
}

#[tokio::test]
async fn a_session_goes_on_with_its_tables_and_only_where_sessions_begin_with_the_same() {
    let root = tempfile::tempdir().unwrap();
    let (me, next) = (life("r", 0, 1), life("r", 1, 2));
    let server = Server::open(&root, Workplace::new(None).unwrap()).await;
    seed(&server, &me).await;
    assert_eq!(
        call(&server, &me, 1, REPLY).await,
        r#"{"output":"Email replied successfully."}"#
    );
    server.control.prepared().await;
    server.control.commit(&[&me]).await;
    server.control.resume(RUN, Decision::Keep).await;
    let shard = server.control.durable().await;
    // After the checkpoint: no part of it.
    call(&server, &me, 2, DELETE).await;
    assert_eq!(server.verify(&me, "{}").await.unwrap().reward, 0.0);

    let tables = tables(&root);
    let same = Server::start(&root, Workplace::new(Some(&tables)).unwrap(), |_| ()).await;
    same.control.restore(shard.clone(), &me, &next).await.unwrap();
    same.control.resume(RESTORE, Decision::Keep).await;
    assert_eq!(same.verify(&next, "{}").await.unwrap().reward, 1.0);

    std::fs::write(tables.join("email_addresses.csv"), "someone@else.example\n").unwrap();
    let other = Server::start(&root, Workplace::new(Some(&tables)).unwrap(), |_| ()).await;
    let refusal = refused(
        other.control.restore(shard, &me, &next).await,
        Reason::InvalidCheckpoint,
    );
    assert!(refusal.message.contains("other tables"), "{refusal}");
}
