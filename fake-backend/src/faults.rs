//! Faults that a test orders: each is used up a number of times, in the order of the list.

use serde::{Deserialize, Serialize};

/// What goes wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum FaultKind {
    /// A cut's receipt leaves one listed call out.
    CutMissing,
    /// A cut's receipt answers one listed call twice.
    CutDouble,
    /// A cut's receipt answers a call that was not listed.
    CutForeign,
    /// A cut's receipt is not sent before the faults are replaced.
    CutLate,
    /// An event stream breaks off after so many sampled tokens, without an end.
    StreamCut {
        /// After how many.
        after_tokens: usize,
    },
    /// A model call is refused with this HTTP status (gRPC: UNAVAILABLE), before anything is sampled.
    HttpError {
        /// 400 to 599.
        status: u16,
    },
    /// A model call is not taken up before the faults are replaced.
    Hang,
}

/// One kind of fault, and how often.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Fault {
    /// What.
    #[serde(flatten)]
    pub kind: FaultKind,
    /// How many times more.
    #[serde(default = "once")]
    pub times: u32,
}

fn once() -> u32 {
    1
}

/// The list.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Faults {
    /// In order.
    pub faults: Vec<Fault>,
}

impl Faults {
    /// Uses up one of the first that fits.
    pub fn take(&mut self, wanted: impl Fn(&FaultKind) -> bool) -> Option<FaultKind> {
        let at = self
            .faults
            .iter()
            .position(|fault| fault.times > 0 && wanted(&fault.kind))?;
        let fault = &mut self.faults[at];
        fault.times -= 1;
        let kind = fault.kind;
        self.faults.retain(|fault| fault.times > 0);
        Some(kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_used_up_as_often_as_ordered() {
        let text = r#"{"faults":[{"kind":"http_error","status":503,"times":2},{"kind":"hang"}]}"#;
        let mut faults: Faults = serde_json::from_str(text).expect("faults");
        let error = |kind: &FaultKind| matches!(kind, FaultKind::HttpError { .. });
        assert_eq!(faults.take(error), Some(FaultKind::HttpError { status: 503 }));
        assert_eq!(faults.take(error), Some(FaultKind::HttpError { status: 503 }));
        assert_eq!(faults.take(error), None);
        assert_eq!(
            faults.faults,
            [Fault {
                kind: FaultKind::Hang,
                times: 1
            }]
        );
    }
}
