//! A tool with effects outside: a call that a checkpoint does not have is made again after a restore, with the same key, and the
//! outside applies it once.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use belay_core::parts::CheckpointMode;
use belay_proto::checkpoint::Decision;
use belay_resources::environment::{TaskError, ToolCall, ToolOutcome, Verdict};
use bytes::Bytes;

use super::*;
use crate::control::{RESTORE, RUN};

/// A shop that outlives every server: orders by key.
#[derive(Clone, Default, Debug)]
struct Shop(Arc<Mutex<Orders>>);

#[derive(Clone, Default, Debug)]
struct Orders {
    /// Each order as it came, with its key.
    received: Vec<String>,
    /// Their numbers.
    placed: BTreeMap<String, usize>,
}

impl Shop {
    /// The order's number: that of the first time for a key that comes again.
    fn order(&self, key: &str) -> usize {
        let mut orders = self.0.lock().expect("no panic");
        orders.received.push(key.to_owned());
        let next = orders.placed.len();
        *orders.placed.entry(key.to_owned()).or_insert(next)
    }

    fn orders(&self) -> Orders {
        self.0.lock().expect("no panic").clone()
    }
}

/// Its sessions count their orders.
#[derive(Clone, Debug)]
struct Buyer(Shop);

impl Environment for Buyer {
    type State = u8;

    fn name(&self) -> &str {
        "buyer"
    }

    fn mode(&self) -> CheckpointMode {
        CheckpointMode::Exported
    }

    fn external(&self, tool: &str) -> bool {
        tool == "order"
    }

    fn tools(&self) -> &[&'static str] {
        &["order", "orders"]
    }

    fn seed(&self, _task: &[u8]) -> Result<u8, TaskError> {
        Ok(0)
    }

    async fn call<'a>(&'a self, orders: &'a u8, call: ToolCall<'a>) -> ToolOutcome<u8> {
        if call.name != "order" {
            return ToolOutcome::Same {
                output: orders.to_string().into(),
            };
        }
        let number = self.0.order(call.key);
        ToolOutcome::Changed {
            output: format!("order {number}").into(),
            state: orders + 1,
        }
    }

    async fn verify<'a>(
        &'a self,
        orders: &'a u8,
        _task: &'a [u8],
        _response: &'a [u8],
    ) -> Result<Verdict, TaskError> {
        Ok(Verdict {
            reward: f64::from(*orders),
            details: Bytes::from_static(b"{}"),
        })
    }

    fn export(&self, orders: &u8) -> Bytes {
        Bytes::copy_from_slice(&[*orders])
    }

    fn export_size(&self, _orders: &u8) -> u64 {
        1
    }

    fn import(&self, _task: &[u8], exported: &[u8]) -> Result<u8, String> {
        exported.first().copied().ok_or_else(|| "empty".into())
    }
}

#[tokio::test]
async fn an_order_that_is_made_again_after_a_restore_is_placed_once() {
    let root = tempfile::tempdir().unwrap();
    let (url, told) = effects::log("200 OK").await;
    let start = async |shop: &Shop| {
        let log = url.clone();
        Server::start(&root, Buyer(shop.clone()), |config| config.effect_log = Some(log)).await
    };
    let shop = Shop::default();
    let (me, next) = (life("r", 0, 1), life("r", 1, 2));
    let order = r#"{"what": "tea"}"#;
    let (shard, first) = {
        let server = start(&shop).await;
        server.control.join(true).await;
        server.seed(&me).await.unwrap();
        server.control.prepared().await;
        server.control.commit(&[&me]).await;
        server.control.resume(RUN, Decision::Keep).await;
        let shard = server.control.durable().await;
        let first = server.call(&me, (0, 1), "order", order).await.unwrap();
        (shard, first)
    };

    let server = start(&shop).await;
    server.control.restore(shard, &me, &next).await.unwrap();
    server.control.resume(RESTORE, Decision::Keep).await;
    let again = server.call(&next, (0, 1), "order", order).await.unwrap();
    assert!(!again.kept, "the checkpoint does not have it");
    assert_eq!((&again.output, again.revision), (&first.output, 1));
    let orders = shop.orders();
    assert_eq!(orders.received.len(), 2);
    assert_eq!(orders.placed.len(), 1, "{orders:?}");

    // The same order as another operation, and another order.
    server.call(&next, (0, 2), "order", order).await.unwrap();
    server
        .call(&next, (1, 1), "order", r#"{"what": "milk"}"#)
        .await
        .unwrap();
    let orders = shop.orders();
    assert_eq!(orders.placed.len(), 3, "{orders:?}");

    server.call(&next, (1, 2), "orders", "{}").await.unwrap();
    let told = told.lock().unwrap().clone();
    let keys: Vec<_> = told[..4].iter().map(|effect| &effect["key"]).collect();
    assert_eq!(keys, orders.received.iter().collect::<Vec<_>>());
    let external: Vec<_> = told.iter().map(|effect| effect["external"] == true).collect();
    assert_eq!(external, [true, true, true, true, false]);
}
