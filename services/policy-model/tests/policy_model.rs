//! The policy-model server over gRPC, before a staging worker that counts what it samples.

mod support;

use belay_core::refusal::Reason;
use belay_policy_model::EngineConfig;
use belay_proto::checkpoint::Decision;
use bytes::Bytes;
use support::{
    Life, Server, finished, generate, mesh, reason, spawn, until,
    worker::{CUT, PROMPT, REPLY, Receipt, tokens_of},
    worker_at,
};

const FIRST: &str = "00000001-00000001";
const SECOND: &str = "00000001-00000002";

fn none() -> Bytes {
    Bytes::new()
}

#[tokio::test]
async fn the_same_call_is_sampled_once_and_its_reply_is_kept() {
    let (worker, mut server, _dir) = mesh().await;
    let life = Life::new("r", 0);
    let first = generate(&server, life.call(0, &none())).await;
    assert!(!first.kept);
    assert_eq!(first.usage.expect("has usage").output_tokens, u64::from(REPLY));
    let again = generate(&server, life.call(0, &none())).await;
    assert!(again.kept);
    assert_eq!(
        (&again.response, &again.chain_hash),
        (&first.response, &first.chain_hash)
    );
    assert_eq!(worker.sampled(), 1);
    let chat = worker.state().chats[0].clone();
    assert_eq!(
        &chat[..],
        br#"{"messages":[{"role":"user","content":"turn 0 of r"}]}"#
    );
    assert_eq!(
        (server.count("rows").await, server.count("kept_replies").await),
        (1, 1)
    );
}

#[tokio::test]
async fn a_call_in_flight_is_joined_and_outlives_its_caller() {
    let (worker, mut server, _dir) = mesh().await;
    let life = Life::new("r", 0);
    worker.hold();
    let gone = spawn(&server, life.call(0, &none()));
    until("it is sampled", || worker.sampled() == 1).await;
    gone.abort();
    let joined: Vec<_> = (0..3).map(|_| spawn(&server, life.call(0, &none()))).collect();
    worker.release();
    for call in joined {
        finished(call).await.expect("replies");
    }
    assert_eq!(worker.sampled(), 1);
    assert_eq!(server.count("rows").await, 1);
    assert_eq!(server.count("calls").await, 0);
}

#[tokio::test]
async fn a_reply_that_is_lost_on_its_way_from_the_worker_is_asked_for_again() {
    let (worker, server, _dir) = mesh().await;
    worker.state().lose_replies = 3;
    generate(&server, Life::new("r", 0).call(0, &none())).await;
    assert_eq!(worker.sampled(), 1);
}

#[tokio::test]
async fn while_closed_new_calls_wait_admitted_ones_go_on_and_replies_are_held() {
    let (worker, mut server, _dir) = mesh().await;
    let (early, late) = (Life::new("early", 0), Life::new("late", 0));
    worker.hold();
    let admitted = spawn(&server, early.call(0, &none()));
    until("it is sampled", || worker.sampled() == 1).await;
    server.prepare(FIRST).await;
    let waits = spawn(&server, late.call(0, &none()));
    worker.release();
    // It finishes, is recorded at once, and does not leave.
    server.until("rows", 1).await;
    server.until("held_replies", 1).await;
    assert_eq!(worker.sampled(), 1, "the new call waits at the door");
    assert!(!admitted.is_finished() && !waits.is_finished());
    let commit = server.commit(FIRST, &[early.episode()]).await;
    assert_eq!(commit.parts.len(), 1);
    assert_eq!(commit.cut_generations, 0, "it had finished");
    let tip = commit.parts[0].ledger.clone().expect("has a row");
    server.resume(FIRST, Decision::Keep).await;
    let reply = finished(admitted).await.expect("leaves now");
    assert_eq!(reply.chain_hash, tip.chain_hash);
    finished(waits).await.expect("is admitted now");
    assert_eq!(worker.sampled(), 2, "nothing was stopped or repeated");
}

#[tokio::test]
async fn a_kept_reply_survives_a_restore_into_a_fresh_server_and_is_never_sampled_again() {
    let (worker, mut server, dir) = mesh().await;
    let life = Life::new("r", 0);
    let first = generate(&server, life.call(0, &none())).await;
    let second = generate(&server, life.call(1, &first.chain_hash)).await;
    let taken = server.checkpoint(FIRST, &[life.episode()]).await;
    // What runs on after the capture is of a dead life.
    generate(&server, life.call(2, &second.chain_hash)).await;
    server.stop();

    let mut server = Server::start(dir.path(), worker_at(&worker.address)).await;
    let next = Life::new("r", 1);
    assert_eq!(
        server.restore(SECOND, &taken, std::slice::from_ref(&next)).await,
        0
    );
    let again = generate(&server, next.call(1, &first.chain_hash)).await;
    assert!(again.kept);
    assert_eq!(
        (again.response, &again.chain_hash),
        (second.response, &second.chain_hash)
    );
    assert_eq!(
        worker.sampled(),
        3,
        "two before the capture, one in the dead life"
    );
    generate(&server, next.call(2, &second.chain_hash)).await;
    assert_eq!(worker.sampled(), 4);

    let rows = server.trajectory(&next).await;
    assert_eq!(rows.len(), 3);
    for (turn, row) in rows.iter().enumerate() {
        let (prompt, sampled) = tokens_of(turn as u32);
        assert_eq!((&row.prompt_token_ids, &row.token_ids), (&prompt, &sampled));
        assert_eq!(row.logprobs.len(), sampled.len());
        assert_eq!(row.weights.iter().map(|w| w.tokens).sum::<u32>(), REPLY);
        assert!(row.masked_because.is_empty(), "{}", row.masked_because);
        let parent = turn
            .checked_sub(1)
            .map_or(none(), |before| rows[before].chain_hash.clone());
        assert_eq!(row.parent, parent, "one chain over both lives");
    }
    let attempts: Vec<u32> = rows
        .iter()
        .map(|row| row.episode.as_ref().expect("set").attempt)
        .collect();
    assert_eq!(attempts, [0, 0, 1]);
    // The old life is refused: its attempt is below the mark that the restore raised.
    let old = finished(spawn(&server, life.call(2, &second.chain_hash)))
        .await
        .expect_err("stale");
    assert_eq!(reason(&old), Reason::StaleAttempt);
}

/// A call of turn 1 is in flight at a checkpoint; then everything dies and is restored.
async fn restored_in_flight(receipt: Receipt) -> (support::worker::Worker, Server, Life, Bytes, u64, u64) {
    let (worker, mut server, dir) = mesh().await;
    let life = Life::new("r", 0);
    let first = generate(&server, life.call(0, &none())).await;
    worker.hold();
    worker.receipt(receipt);
    let _in_flight = spawn(&server, life.call(1, &first.chain_hash));
    until("it is sampled", || worker.sampled() == 2).await;
    server.prepare(FIRST).await;
    if receipt == Receipt::Late {
        // The capture does not wait for it.
        until("it is asked", || !worker.state().cuts.is_empty()).await;
        assert_eq!(server.count("cuts_pending").await, 1);
    } else {
        server.until("cuts_pending", 0).await;
    }
    let commit = server.commit(FIRST, &[life.episode()]).await;
    let cut = commit.cut_tokens;
    assert_eq!(worker.state().cuts.len(), 1, "one call for all that is in flight");
    assert_eq!(worker.state().cuts[0].calls.len(), 1);
    worker.receipt(Receipt::Good);
    server.resume(FIRST, Decision::Keep).await;
    let taken = server.durable(FIRST, commit).await;
    server.stop();
    worker.release();

    let mut server = Server::start(dir.path(), worker_at(&worker.address)).await;
    let next = Life::new("r", 1);
    let lost = server.restore(SECOND, &taken, std::slice::from_ref(&next)).await;
    assert_eq!(worker.sampled(), 2, "nothing runs by itself");
    (worker, server, next, first.chain_hash, cut, lost)
}

#[tokio::test]
async fn a_generation_in_flight_is_continued_from_its_cut_prefix() {
    let (worker, mut server, next, parent, cut, lost) = restored_in_flight(Receipt::Good).await;
    assert_eq!((cut, lost), (u64::from(CUT), 0));
    assert_eq!(server.count("waiting_calls").await, 1);
    let reply = generate(&server, next.call(1, &parent)).await;
    assert!(!reply.kept);
    assert_eq!(worker.state().sampled[2].1, CUT, "only the rest is sampled");
    let rows = server.trajectory(&next).await;
    assert_eq!(rows.len(), 2);
    assert_eq!(rows[1].token_ids, tokens_of(1).1);
}

#[tokio::test]
async fn a_call_whose_receipt_is_broken_is_generated_anew() {
    for receipt in [Receipt::Missing, Receipt::Double, Receipt::Foreign, Receipt::Late] {
        let (worker, server, next, parent, cut, lost) = restored_in_flight(receipt).await;
        assert_eq!((cut, lost), (0, 0), "{receipt:?}");
        generate(&server, next.call(1, &parent)).await;
        let sampled = worker.state().sampled.clone();
        assert_eq!(
            (sampled.len(), sampled[2].1),
            (3, 0),
            "{receipt:?}: anew, from the start"
        );
    }
}

#[tokio::test]
async fn a_prefix_that_the_worker_has_lost_is_reported_and_generated_anew() {
    let (worker, mut server, dir) = mesh().await;
    let life = Life::new("r", 0);
    worker.hold();
    let _in_flight = spawn(&server, life.call(0, &none()));
    until("it is sampled", || worker.sampled() == 1).await;
    let taken = server.checkpoint(FIRST, &[life.episode()]).await;
    assert_eq!(taken.commit.cut_generations, 1);
    server.stop();
    worker.release();
    worker.state().rows.clear();
    let mut server = Server::start(dir.path(), worker_at(&worker.address)).await;
    let next = Life::new("r", 1);
    assert_eq!(
        server.restore(SECOND, &taken, std::slice::from_ref(&next)).await,
        1
    );
    generate(&server, next.call(0, &none())).await;
    assert_eq!(worker.state().sampled[1].1, 0);
}

#[tokio::test]
async fn a_call_that_the_worker_has_finished_is_captured_with_its_whole_reply() {
    let (worker, mut server, _dir) = mesh().await;
    let life = Life::new("r", 0);
    worker.hold();
    worker.receipt(Receipt::Finished);
    let in_flight = spawn(&server, life.call(0, &none()));
    until("it is sampled", || worker.sampled() == 1).await;
    server.prepare(FIRST).await;
    until("it is asked", || !worker.state().cuts.is_empty()).await;
    assert_eq!(server.count("cuts_pending").await, 1, "its reply is on its way");
    worker.release();
    server.until("cuts_pending", 0).await;
    let commit = server.commit(FIRST, &[life.episode()]).await;
    assert!(commit.parts[0].ledger.is_some());
    server.resume(FIRST, Decision::Abandon).await;
    finished(in_flight).await.expect("leaves");
    until("its prefixes are released", || worker.state().released == [FIRST]).await;
}

#[tokio::test]
async fn a_constrained_generation_is_not_cut() {
    let (worker, mut server, _dir) = mesh().await;
    let life = Life::new("r", 0);
    worker.hold();
    let mut call = life.call(0, &none());
    call.request = r#"{"input":"x","text":{"format":{"type":"json_object"}}}"#.into();
    let _in_flight = spawn(&server, call);
    until("it is sampled", || worker.sampled() == 1).await;
    server.prepare(FIRST).await;
    server.until("cuts_pending", 0).await;
    let commit = server.commit(FIRST, &[life.episode()]).await;
    assert_eq!((commit.parts.len(), commit.cut_generations), (1, 0));
    assert!(worker.state().cuts.is_empty());
}

#[tokio::test]
async fn refused_calls_sample_nothing_and_say_why() {
    let (worker, server, _dir) = mesh().await;
    let life = Life::new("r", 0);
    let first = generate(&server, life.call(0, &none())).await.chain_hash;
    let second = generate(&server, life.call(1, &first)).await.chain_hash;
    let other_life = Life {
        execution: Life::new("r", 7).execution,
        ..life.clone()
    };
    let mut other_request = life.call(1, &first);
    other_request.request = r#"{"input":"something else"}"#.into();
    let mut tool_call = life.call(2, &second);
    tool_call.operation.as_mut().expect("set").index = 1;
    let mut no_json = life.call(2, &second);
    no_json.request = "{".into();
    let mut bad_id = life.call(2, &second);
    bad_id
        .r#ref
        .as_mut()
        .expect("set")
        .episode
        .as_mut()
        .expect("set")
        .rollout_id = "a/b".into();
    for (what, call, expected) in [
        (
            "no ledger",
            Life::new("q", 0).call(1, &first),
            Reason::EpisodeUnknown,
        ),
        (
            "parent of nothing",
            Life::new("q", 0).call(0, &first),
            Reason::EpisodeUnknown,
        ),
        (
            "not after the last row",
            life.call(2, &first),
            Reason::EpisodeUnknown,
        ),
        ("a turn left out", life.call(3, &second), Reason::EpisodeUnknown),
        (
            "another life",
            other_life.call(2, &second),
            Reason::StaleExecution,
        ),
        ("an older operation", life.call(0, &none()), Reason::OperationPast),
        ("another request", other_request, Reason::OperationMismatch),
        ("a tool call", tool_call, Reason::InvalidRequest),
        ("no JSON", no_json, Reason::InvalidRequest),
        ("a bad id", bad_id, Reason::InvalidId),
        (
            "a short parent",
            life.call(2, &Bytes::from_static(b"xx")),
            Reason::InvalidRequest,
        ),
    ] {
        let status = finished(spawn(&server, call)).await.expect_err(what);
        let refusal = belay_mesh::status::from_status(&status).expect("has a reason");
        assert_eq!(refusal.reason, expected, "{what}: {}", refusal.message);
        assert_eq!(refusal.get("instance"), Some("policy-model/default/0"), "{what}");
    }
    assert_eq!(worker.sampled(), 2);
}

#[tokio::test]
async fn a_retired_attempt_is_stopped_freed_and_refused_until_forgotten() {
    let (worker, mut server, _dir) = mesh().await;
    let life = Life::new("r", 0);
    let parent = generate(&server, life.call(0, &none())).await.chain_hash;
    worker.hold();
    let in_flight = spawn(&server, life.call(1, &parent));
    until("it is sampled", || worker.sampled() == 2).await;
    server.retire(&life).await.expect("retires");
    finished(in_flight).await.expect_err("it is stopped");
    {
        let state = worker.state();
        assert_eq!(state.cancelled.len(), 1);
        assert_eq!(state.freed, [("r".to_owned(), 0)]);
    }
    for name in [
        "calls",
        "ledgers",
        "rows",
        "kept_replies",
        "held_replies",
        "staged",
    ] {
        assert_eq!(server.count(name).await, 0, "{name}");
    }
    let refused = finished(spawn(&server, life.call(0, &none())))
        .await
        .expect_err("is marked");
    assert_eq!(reason(&refused), Reason::StaleAttempt);
    worker.release();
    let forget = belay_proto::checkpoint::ForgetRequest {
        fence: server.fence(),
        rollout_ids: vec!["r".into()],
        marks_version: 6,
        check: false,
    };
    server.control.forget(forget).await.expect("is over");
    let mut anew = Life::new("r", 0);
    anew.execution = Life::new("r", 9).execution;
    generate(&server, anew.call(0, &none())).await;
}

#[tokio::test]
async fn an_acknowledged_episode_ends_once_and_its_tokens_are_freed() {
    let (worker, mut server, _dir) = mesh().await;
    let life = Life::new("r", 0);
    generate(&server, life.call(0, &none())).await;
    let other = Life {
        execution: Life::new("r", 7).execution,
        ..life.clone()
    };
    assert_eq!(server.end(&other).await, 0, "meant for another life");
    assert_eq!(server.end(&life).await, 1);
    assert_eq!(server.end(&life).await, 0, "again");
    until("its tokens are freed", || {
        worker.state().freed.contains(&("r".to_owned(), 0))
    })
    .await;
    let late = finished(spawn(&server, life.call(0, &none())))
        .await
        .expect_err("has ended");
    assert_eq!(reason(&late), Reason::EpisodeUnknown);
    assert_eq!(worker.sampled(), 1);
}

#[tokio::test]
async fn while_closed_a_ledger_does_not_end() {
    let (_worker, mut server, _dir) = mesh().await;
    let life = Life::new("r", 0);
    generate(&server, life.call(0, &none())).await;
    server.prepare(FIRST).await;
    let mut data = server.data.clone();
    let end = belay_proto::episode::EndEpisodesRequest {
        refs: vec![life.wire()],
    };
    let ending = tokio::spawn(async move { data.end_episodes(end).await });
    let commit = server.commit(FIRST, &[life.episode()]).await;
    assert_eq!(
        commit.parts.len(),
        1,
        "what the environment captured is captured here"
    );
    assert!(!ending.is_finished());
    server.resume(FIRST, Decision::Keep).await;
    assert_eq!(
        ending.await.expect("no panic").expect("ends").into_inner().ended,
        1
    );
}

#[tokio::test]
async fn tokens_that_are_missing_or_altered_mask_their_row_and_no_other() {
    let (worker, mut server, _dir) = mesh().await;
    let life = Life::new("r", 0);
    let mut parent = none();
    for turn in 0..3 {
        parent = generate(&server, life.call(turn, &parent)).await.chain_hash;
    }
    {
        let mut state = worker.state();
        let row_of = |first: u32| {
            state
                .rows
                .iter()
                .find(|(_, t)| t.sampled[0] == first)
                .map(|(row, _)| row.clone())
                .expect("a row")
        };
        let (missing, altered) = (row_of(100), row_of(200));
        state.rows.remove(&missing);
        state.rows.get_mut(&altered).expect("a row").sampled[0] += 1;
    }
    let rows = server.trajectory(&life).await;
    assert!(
        rows[0].masked_because.contains("no longer"),
        "{}",
        rows[0].masked_because
    );
    assert!(
        rows[1].masked_because.contains("other tokens"),
        "{}",
        rows[1].masked_because
    );
    assert!(
        rows[0].token_ids.is_empty() && rows[1].token_ids.is_empty(),
        "never guessed"
    );
    assert!(rows[2].masked_because.is_empty());
    assert_eq!(rows[2].prompt_token_ids.len(), PROMPT as usize);
}

#[tokio::test]
async fn an_engine_that_is_not_there_fails_by_name_within_the_patience() {
    let dir = tempfile::tempdir().expect("a directory");
    let unused = std::net::TcpListener::bind("127.0.0.1:0")
        .expect("binds")
        .local_addr()
        .expect("bound");
    let server = Server::open(
        dir.path(),
        EngineConfig::StagingWorker {
            address: unused.to_string(),
            model: None,
        },
    )
    .await;
    let life = Life::new("r", 0);
    let status = finished(spawn(&server, life.call(0, &none())))
        .await
        .expect_err("no engine");
    assert_eq!(reason(&status), Reason::EngineFailed);
    assert!(
        status.message().contains(&unused.to_string()),
        "{}",
        status.message()
    );
    assert_eq!(status.message().lines().count(), 1);
}
