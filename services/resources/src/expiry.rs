//! Sessions that nobody calls any more are ended, now and then.

use std::{sync::Arc, time::Duration};

use tracing::info;

use crate::{environment::Environment, resources::Resources};

/// A session ends at most this much later than its time to live says.
const LONGEST_STEP: Duration = Duration::from_secs(60);
/// However short the time to live is.
const SHORTEST_STEP: Duration = Duration::from_millis(1);

/// Looks every sixteenth of the time to live, for good.
pub(crate) async fn expire_sessions<E: Environment>(resources: Arc<Resources<E>>, ttl: Duration) {
    let gate = &resources.gate;
    let step = (ttl / 16).clamp(SHORTEST_STEP, LONGEST_STEP);
    loop {
        gate.open_time_reaches(gate.open_time() + step).await;
        let ended = resources.expire().await;
        if ended > 0 {
            info!(instance = %gate.instance(), "{ended} sessions ended: nobody called them for {ttl:?}, their time to live");
        }
    }
}
