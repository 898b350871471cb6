//! A coordinator that hears of a newer one stops, and never raises its own epoch while it runs (protocol 3.2).

use std::sync::{Arc, Mutex, PoisonError};

use belay_core::ids::Instance;
use belay_mesh::shutdown::Shutdown;

/// Told once, by whichever call hears it first; ends the process. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Superseded(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    by: Mutex<Option<Instance>>,
    stop: Shutdown,
}

impl Superseded {
    /// This participant follows a newer coordinator.
    pub fn tell(&self, by: &Instance) {
        self.0
            .by
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get_or_insert_with(|| by.clone());
        self.0.stop.cancel();
    }

    /// Who said so, if anybody did.
    pub fn by(&self) -> Option<Instance> {
        self.0.by.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Fires when somebody has said so.
    pub fn token(&self) -> &Shutdown {
        &self.0.stop
    }
}
