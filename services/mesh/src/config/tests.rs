//! What is read, and what is said of a file that cannot be.

use super::{ConfigError, MeshConfig, ResolvedMember, ResolvedMesh};

fn read(text: &str) -> Result<MeshConfig, String> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("mesh.toml");
    std::fs::write(&path, text).unwrap();
    MeshConfig::read(&path).map_err(|error| error.to_string().replace(&*path.to_string_lossy(), "mesh.toml"))
}

#[test]
fn an_empty_file_is_the_built_in_mesh_and_it_reads_back_as_written() {
    let config = read("").unwrap();
    assert_eq!(config, MeshConfig::default());
    let names: Vec<_> = config.instances().iter().map(ToString::to_string).collect();
    assert_eq!(
        names,
        [
            "environment/default/0",
            "policy-model/default/0",
            "agent/default/0",
            "resources/counter/0",
            "resources/synonyms/0",
            "resources/weather/0",
        ]
    );
    let text = toml::to_string(&config).unwrap();
    assert_eq!(read(&text).unwrap(), config);
}

#[test]
fn what_is_wrong_is_said_in_one_line_with_its_place() {
    let base = "[[server]]\nkind = \"environment\"\n[[server]]\nkind = \"agent\"\n[[server]]\nkind = \"policy-model\"\n";
    let cases = [
        ("deployment = 3", "line 1: invalid type"),
        ("\nroots = \"x\"", "line 2: unknown field `roots`"),
        ("[engine]\nkind = \"magic\"", "unknown variant `magic`"),
        ("deployment = \"a/b\"", "deployment = \"a/b\" is not a name"),
        (base, "no [[server]] has kind = \"resources\""),
        (
            &format!("{base}[[server]]\nkind = \"resources\"\nname = \"a b\""),
            "\"a b\" is not a server's name",
        ),
        (&format!("{base}[[server]]\nkind = \"agent\""), "stands twice"),
        (
            "[coordinator]\naddress = \"here\"",
            "[coordinator] address: \"here\" is not an address",
        ),
        (
            "[engine]\nkind = \"staging-worker\"\naddress = \"http://a:1\"",
            "[engine] address: \"http://a:1\" is not an address",
        ),
        (
            "[engine]\nkind = \"openai\"\nbase_url = \"127.0.0.1:8000\"",
            "[engine] base_url: \"127.0.0.1:8000\" is no URL",
        ),
        (
            "[telemetry]\notlp = \"127.0.0.1:4317\"",
            "[telemetry] otlp: \"127.0.0.1:4317\" is no URL",
        ),
        ("[limits]\nrecord_limit = 0", "[limits] record_limit = 0"),
        ("[limits]\ndoor = 0", "[limits] door = 0"),
        ("[limits]\npatience_seconds = 0", "[limits] patience_seconds = 0"),
        (
            &format!(
                "{base}[[server]]\nkind = \"resources\"\naddresses = [{{ data = \"a:1\", control = \"a:1\" }}]"
            ),
            "the address a:1 is given twice",
        ),
        (
            &format!(
                "{base}[[server]]\nkind = \"resources\"\nreplicas = 2\naddresses = [{{ data = \"a:1\", control = \"a:2\" }}]"
            ),
            "1 addresses for 2 replicas",
        ),
        (
            &format!("{base}[[server]]\nkind = \"resources\"\neffect_log = \"a:1\""),
            "effect_log: \"a:1\" is no URL",
        ),
        (
            &format!("{base}[[server]]\nkind = \"resources\"\nreplicas = 0"),
            "replicas = 0",
        ),
        (
            &format!("{base}[[server]]\nkind = \"resources\"\nmax_steps = 1"),
            "max_steps belongs to",
        ),
        (
            &format!(
                "{base}[[server]]\nkind = \"resources\"\n[[server]]\nkind = \"agent\"\nname = \"b\"\ntables = \"a\""
            ),
            "tables belongs to",
        ),
        (
            &format!("{base}[[server]]\nkind = \"policy-model\"\nname = \"b\"\nmode = \"exported\""),
            "mode belongs to kind = \"environment\" or \"agent\" or \"resources\"",
        ),
        (
            &format!("{base}[[server]]\nkind = \"agent\"\nname = \"b\"\nmode = \"stateless\""),
            "mode = \"stateless\" belongs to kind = \"resources\"",
        ),
        (
            &format!("{base}[[server]]\nkind = \"agent\"\nname = \"b\"\nshared = true"),
            "shared belongs to",
        ),
        (
            &format!("{base}[[server]]\nkind = \"resources\"\nsession_ttl_seconds = 0"),
            "session_ttl_seconds = 0: it must be above 0",
        ),
    ];
    for (text, expected) in cases {
        let message = read(text).unwrap_err();
        assert!(
            message.starts_with("mesh.toml: ") && message.contains(expected),
            "{text:?}: {message}"
        );
        assert_eq!(message.lines().count(), 1, "{message}");
    }
}

#[test]
fn a_running_mesh_is_found_by_its_file_and_a_missing_one_says_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("deep/mesh.json");
    let missing = ResolvedMesh::read(&path).unwrap_err();
    assert!(matches!(missing, ConfigError::NoMesh { .. }));
    for part in ["no mesh is up", "deep/mesh.json", "belay up", "--mesh"] {
        assert!(missing.to_string().contains(part), "{missing}");
    }
    let mut mesh = ResolvedMesh {
        deployment: "local".into(),
        root: "/tmp/checkpoints".into(),
        coordinator: "127.0.0.1:1".into(),
        backend: None,
        members: vec![ResolvedMember {
            instance: "agent/default/0".parse().unwrap(),
            data: "127.0.0.1:2".into(),
            control: "127.0.0.1:3".into(),
        }],
    };
    for backend in [None, Some("127.0.0.1:4".to_owned())] {
        mesh.backend = backend;
        mesh.write(&path).unwrap();
        assert_eq!(ResolvedMesh::read(&path).unwrap(), mesh);
    }
    let left: Vec<_> = std::fs::read_dir(path.parent().unwrap()).unwrap().collect();
    assert_eq!(left.len(), 1, "{left:?}");
    std::fs::write(&path, "{").unwrap();
    let cut = ResolvedMesh::read(&path).unwrap_err().to_string();
    assert!(
        cut.contains("mesh.json: is no mesh file") && cut.lines().count() == 1,
        "{cut}"
    );
}

#[test]
fn every_process_of_a_mesh_reads_what_was_written_for_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("new/mesh.toml");
    let config = read(
        "[engine]\nkind = \"openai\"\nbase_url = \"http://a:1/v1\"\ntoken_ids = false\n[tls]\nca = \"a\"\ncert = \"b\"\nkey = \"c\"\n[telemetry]\nlog = \"warn\"",
    )
    .unwrap();
    config.write(&path).unwrap();
    assert_eq!(MeshConfig::read(&path).unwrap(), config);
}
