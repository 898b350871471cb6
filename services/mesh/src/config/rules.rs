//! The rules of a mesh's configuration beyond the keys' own. Each says the place, the rule and the remedy in one line.

use std::collections::BTreeSet;

use belay_core::{
    ids::{Instance, Kind},
    parts::CheckpointMode,
};

use super::{Engine, MeshConfig, ServerConfig};
use crate::channel::check_address;

/// The first rule that is broken.
pub(super) fn check(config: &MeshConfig) -> Result<(), String> {
    let name = &config.deployment;
    Instance::new(Kind::Environment, name, 0).map_err(|_| {
        format!(
            "deployment = {name:?} is not a name: letters, digits, '.', '_' or '-', a letter or digit first"
        )
    })?;
    at(
        "[coordinator] address",
        check_address(&config.coordinator.address),
    )?;
    engine(&config.engine)?;
    if let Some(otlp) = &config.telemetry.otlp {
        url("[telemetry] otlp", otlp, "http://127.0.0.1:4317")?;
    }
    let limits = [
        ("record_limit", config.limits.record_limit),
        ("door", config.limits.door as u64),
        ("patience_seconds", config.limits.patience_seconds),
    ];
    if let Some((key, _)) = limits.into_iter().find(|(_, value)| *value == 0) {
        return Err(format!(
            "[limits] {key} = 0: it must be above 0; leave it out for the default"
        ));
    }
    servers(&config.servers)
}

fn engine(engine: &Engine) -> Result<(), String> {
    match engine {
        Engine::Fake => Ok(()),
        Engine::StagingWorker { address, .. } => at("[engine] address", check_address(address)),
        Engine::Openai { base_url, .. } => url("[engine] base_url", base_url, "http://127.0.0.1:8000/v1"),
    }
}

fn servers(servers: &[ServerConfig]) -> Result<(), String> {
    let (mut names, mut addresses) = (BTreeSet::new(), BTreeSet::new());
    for server in servers {
        let label = format!(
            "[[server]] kind = \"{}\", name = \"{}\"",
            server.kind, server.name
        );
        at(&label, self::server(server))?;
        if !names.insert((server.kind, &server.name)) {
            return Err(format!(
                "{label} stands twice; write replicas = 2 for a second one"
            ));
        }
        // Port 0 is a free port, each time another.
        let fixed = server.addresses.iter().flat_map(|at| [&at.data, &at.control]);
        for address in fixed.filter(|address| !address.ends_with(":0")) {
            if !addresses.insert(address) {
                return Err(format!(
                    "{label}: the address {address} is given twice; each port needs its own"
                ));
            }
        }
    }
    match Kind::ALL
        .into_iter()
        .find(|kind| !servers.iter().any(|s| s.kind == *kind))
    {
        Some(kind) => Err(format!(
            "no [[server]] has kind = \"{kind}\"; a mesh needs one of each kind"
        )),
        None => Ok(()),
    }
}

fn server(server: &ServerConfig) -> Result<(), String> {
    Instance::new(server.kind, &server.name, 0).map_err(|refusal| refusal.message)?;
    if server.replicas == 0 {
        return Err("replicas = 0; leave the server out instead".into());
    }
    let fixed = server.addresses.len();
    if fixed != 0 && fixed != server.replicas as usize {
        return Err(format!(
            "{fixed} addresses for {} replicas; give one each, or none",
            server.replicas
        ));
    }
    for address in &server.addresses {
        at("data", check_address(&address.data))?;
        at("control", check_address(&address.control))?;
    }
    if let Some(effect_log) = &server.effect_log {
        url("effect_log", effect_log, "http://127.0.0.1:9000/_ctl/effects")?;
    }
    if server.session_ttl_seconds == Some(0) {
        return Err("session_ttl_seconds = 0: it must be above 0; leave it out for sessions that do not end by themselves".into());
    }
    keys(server)?;
    match server.mode {
        Some(CheckpointMode::Stateless) if server.kind != Kind::Resources => Err(
            "mode = \"stateless\" belongs to kind = \"resources\"; here it is \"exported\" or \"restart_only\"".into(),
        ),
        _ => Ok(()),
    }
}

/// Keys that stand only at some kinds.
fn keys(server: &ServerConfig) -> Result<(), String> {
    let resources = &[Kind::Resources][..];
    let owners = &[Kind::Environment, Kind::Agent][..];
    let theirs = [
        ("builtin", server.builtin.is_some(), resources),
        (
            "mode",
            server.mode.is_some(),
            &[Kind::Environment, Kind::Agent, Kind::Resources],
        ),
        ("verify", server.verify.is_some(), resources),
        ("shared", server.shared, resources),
        (
            "session_ttl_seconds",
            server.session_ttl_seconds.is_some(),
            resources,
        ),
        ("effect_log", server.effect_log.is_some(), resources),
        ("tables", server.tables.is_some(), resources),
        ("max_steps", server.max_steps.is_some(), &[Kind::Agent]),
        ("max_unacknowledged", server.max_unacknowledged.is_some(), owners),
    ];
    let wrong = theirs
        .into_iter()
        .find(|(_, set, kinds)| *set && !kinds.contains(&server.kind));
    let Some((key, _, kinds)) = wrong else {
        return Ok(());
    };
    let kinds: Vec<_> = kinds.iter().map(|kind| format!("\"{kind}\"")).collect();
    Err(format!(
        "{key} belongs to kind = {}; take it out here",
        kinds.join(" or ")
    ))
}

fn url(place: &str, value: &str, example: &str) -> Result<(), String> {
    let rest = value
        .strip_prefix("http://")
        .or_else(|| value.strip_prefix("https://"));
    if rest.is_some_and(|rest| !rest.is_empty()) && value.parse::<http::Uri>().is_ok() {
        Ok(())
    } else {
        Err(format!("{place}: {value:?} is no URL; write it as {example}"))
    }
}

/// Puts the place before what is wrong there.
fn at(place: &str, checked: Result<(), String>) -> Result<(), String> {
    checked.map_err(|what| format!("{place}: {what}"))
}
