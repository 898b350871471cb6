//! The one line that a process prints on stdout when it is bound.

use serde::Deserialize;

/// What a process says of itself.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(untagged)]
pub enum Ready {
    /// A server of the mesh.
    Server {
        /// kind/name/replica.
        instance: String,
        /// host:port of the episode API.
        data: String,
        /// host:port of the control plane.
        control: String,
        /// Its process id.
        pid: u32,
    },
    /// The coordinator.
    Coordinator {
        /// host:port.
        coordinator: String,
        /// Its process id.
        pid: u32,
    },
    /// The fake backend.
    Backend {
        /// host:port.
        backend: String,
        /// Its process id.
        pid: u32,
    },
}

impl Ready {
    /// Reads the line.
    pub fn read(line: &str) -> Result<Self, String> {
        serde_json::from_str(line).map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_line_is_told_apart() {
        let server =
            r#"{"instance":"resources/counter/0","data":"127.0.0.1:1","control":"127.0.0.1:2","pid":7}"#;
        assert!(matches!(Ready::read(server), Ok(Ready::Server { pid: 7, .. })));
        assert!(matches!(
            Ready::read(r#"{"coordinator":"127.0.0.1:3","pid":7}"#),
            Ok(Ready::Coordinator { .. })
        ));
        assert!(matches!(
            Ready::read(r#"{"backend":"127.0.0.1:4","pid":7}"#),
            Ok(Ready::Backend { .. })
        ));
        for bad in ["", "ready", r#"{"pid":7}"#, r#"{"instance":"a/b/0","pid":7}"#] {
            assert!(Ready::read(bad).is_err(), "{bad}");
        }
    }
}
