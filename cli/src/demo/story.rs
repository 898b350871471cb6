//! What happens in the demo, stage by stage.

use crate::show::say;
use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Context as _, anyhow, bail};
use belay_core::ids::{Episode, RolloutId};
use belay_fake_backend::ctl::{CallRecord, CtlClient, Hold, RecordState};
use belay_local_mesh::{LocalMesh, Spec};
use belay_mesh::config::MeshConfig;
use belay_proto::{
    checkpoint::{
        CheckpointRequest, CoordinatorRestoreRequest, Published, Restored, Standing, checkpoint_response,
        coordinator_restore_response,
    },
    episode::RunResponse,
};
use tokio::task::JoinSet;
use tonic::Status;

use super::{
    DemoArgs,
    report::{Account, Call, Effect, Evidence, Outcome, account},
    tasks,
};
use crate::{
    connect::MeshArg,
    rollout::{
        client::{Patience, RolloutClient, RolloutFailure, RolloutSpec},
        locate::Locate,
    },
    show,
};

/// What the demo came to.
pub struct Told {
    /// The table.
    pub account: Account,
    /// As the coordinator measured it.
    pub stall: Duration,
    /// As the coordinator measured it.
    pub restore: Duration,
    /// Who was killed.
    pub killed: Vec<String>,
    /// The checkpoint.
    pub checkpoint: String,
    /// Over all results.
    pub mean_reward: f64,
    /// The mesh's directory, if it is kept.
    pub kept: Option<PathBuf>,
}

/// Each wait of the demo ends by then, with an error that names what was waited for.
const BOUND: Duration = Duration::from_secs(120);
/// Tokens of an answer after which a call is held in its middle.
const MIDDLE: u64 = 4;

type Running = JoinSet<Result<RunResponse, RolloutFailure>>;

/// Tells the story.
pub async fn tell(args: &DemoArgs) -> anyhow::Result<Told> {
    let dir = tempfile::Builder::new()
        .prefix("belay-demo-")
        .tempdir()
        .context("no directory for the demo")?;
    let config = MeshConfig {
        deployment: "demo".into(),
        root: dir.path().join("checkpoints"),
        state: dir.path().join("state"),
        ..MeshConfig::default()
    };
    let program = std::env::current_exe().context("the path of this program is not known")?;
    let spec = Spec::new(program, dir.path().join("mesh"), config);
    let mut stage = Stages {
        started: Instant::now(),
        quiet: args.json,
    };
    let mut mesh = LocalMesh::up(spec).await?;
    let told = scenes(args, &mut mesh, &mut stage).await;
    let told = match told {
        Ok(told) => told,
        Err(error) => {
            let kept = dir.keep();
            return Err(error.context(format!(
                "the demo stopped; its logs are in {}",
                kept.join("mesh/logs").display()
            )));
        }
    };
    mesh.stop().await?;
    let kept = (args.keep || !told.account.is_clean()).then(|| dir.keep());
    Ok(Told { kept, ..told })
}

async fn scenes(args: &DemoArgs, mesh: &mut LocalMesh, stage: &mut Stages) -> anyhow::Result<Told> {
    mesh.wait_open(BOUND).await?;
    let servers = mesh.addresses().count() as u64;
    stage.done(&format!(
        "mesh up: {}, a coordinator, an engine",
        show::count(servers, "server")
    ));

    let mesh_arg = MeshArg {
        mesh: mesh.spec().mesh_file(),
        coordinator: None,
    };
    let client = RolloutClient::new(
        Locate(mesh_arg),
        Patience {
            mesh: BOUND,
            attempts: 1,
        },
    );
    let ctl = mesh.ctl()?;
    let mut evidence = Evidence {
        rollouts: (0..args.rollouts).map(name).collect(),
        ..Evidence::default()
    };

    // An eighth is over before the checkpoint; the others are held half-way.
    let early = args.rollouts / 8;
    let mut running = Running::new();
    start(&mut running, &client, 0..early)?;
    collect(&mut running, &client, &mut evidence).await?;
    stage.done(&format!(
        "{} finished and acknowledged",
        show::count(early.into(), "rollout")
    ));

    let middle = early + (args.rollouts - early) / 2;
    ctl.hold(Hold::AfterCallsPerRollout(1)).await?;
    start(&mut running, &client, early..middle)?;
    ctl.wait_held(u64::from(middle - early), BOUND).await?;
    ctl.hold(Hold::AfterTokensPerCall(MIDDLE)).await?;
    start(&mut running, &client, middle..args.rollouts)?;
    let in_flight = u64::from(args.rollouts - early);
    ctl.wait_held(in_flight, BOUND).await?;
    stage.done(&format!(
        "{in_flight} in flight: {} held before their second answer, {} in the middle of their first",
        middle - early,
        args.rollouts - middle
    ));

    let (checkpoint, published) = take_checkpoint(mesh, &mut evidence).await?;
    evidence.calls_at_checkpoint = calls(&ctl).await?;
    evidence.effects_at_checkpoint = effects(&ctl).await?;
    let stall = show::from_wire(published.stall);
    stage.done(&format!(
        "checkpoint {checkpoint}: {}, {} cut with {}, {}; the mesh stood still for {}",
        show::count(published.episodes, "episode"),
        show::count(published.cut_generations, "answer"),
        show::count(published.cut_tokens, "token"),
        show::bytes(published.bytes),
        show::duration(stall)
    ));

    let killed = mesh.kill_servers().await?;
    stage.done(&format!("SIGKILL: {}", killed.join(", ")));

    mesh.start_servers().await?;
    mesh.wait_joined(BOUND).await?;
    stage.done("mesh up again");

    let restored = restore(mesh, &mut evidence).await?;
    let restore = show::from_wire(restored.total);
    stage.done(&format!(
        "restored: {} in {}",
        show::count(restored.episodes, "episode"),
        show::duration(restore)
    ));

    ctl.release().await?;
    collect(&mut running, &client, &mut evidence).await?;
    evidence.calls_at_end = calls(&ctl).await?;
    evidence.effects_at_end = effects(&ctl).await?;
    stage.done("all finished");

    let rewards: f64 = evidence.outcomes.iter().map(|outcome| outcome.reward).sum();
    let mean_reward = rewards / (evidence.outcomes.len().max(1) as f64);
    Ok(Told {
        account: account(&evidence),
        stall,
        restore,
        killed,
        checkpoint,
        mean_reward,
        kept: None,
    })
}

fn name(n: u32) -> String {
    format!("demo-{n:05}")
}

fn start(running: &mut Running, client: &RolloutClient, numbers: std::ops::Range<u32>) -> anyhow::Result<()> {
    for n in numbers {
        let (environment, task) = tasks::task(n);
        let spec = RolloutSpec {
            rollout: RolloutId::new(&name(n))?,
            environment: environment.into(),
            task,
            max_steps: 0,
        };
        let client = client.clone();
        running.spawn(async move { client.run_to_end(&spec).await });
    }
    Ok(())
}

/// Waits for all that runs, notes and acknowledges each result.
async fn collect(
    running: &mut Running,
    client: &RolloutClient,
    evidence: &mut Evidence,
) -> anyhow::Result<()> {
    let mut finished = Vec::new();
    while let Some(ended) = tokio::time::timeout(BOUND, running.join_next())
        .await
        .map_err(|_| anyhow!("no rollout finished for {BOUND:?}"))?
    {
        let result = ended.context("a rollout's task ended by itself")??;
        let episode = belay_mesh::wire::episode(result.episode)?;
        evidence.outcomes.push(Outcome {
            rollout: episode.rollout.to_string(),
            attempt: episode.attempt,
            reward: result.reward,
            restored: result.restored,
        });
        finished.push(episode);
    }
    acknowledge(client, finished).await
}

async fn acknowledge(client: &RolloutClient, episodes: Vec<Episode>) -> anyhow::Result<()> {
    client.acknowledge(episodes).await.map_err(refused)
}

async fn take_checkpoint(mesh: &LocalMesh, evidence: &mut Evidence) -> anyhow::Result<(String, Published)> {
    use checkpoint_response::Event;
    let request = CheckpointRequest::default();
    let mut events = mesh
        .coordinator()?
        .checkpoint(request)
        .await
        .map_err(refused)?
        .into_inner();
    while let Some(message) = events.message().await.map_err(refused)? {
        match message.event {
            Some(Event::Partition(partition)) => {
                let entries = partition
                    .entries
                    .into_iter()
                    .filter(|entry| entry.standing() == Standing::Acknowledged);
                evidence
                    .acknowledged
                    .extend(entries.filter_map(|entry| entry.episode).map(|e| e.rollout_id));
            }
            Some(Event::Published(published)) => return Ok((message.checkpoint_id, published)),
            Some(Event::Abandoned(abandoned)) => {
                bail!(
                    "checkpoint {} was abandoned: {}: {}",
                    message.checkpoint_id,
                    abandoned.reason,
                    abandoned.message
                )
            }
            _ => {}
        }
    }
    bail!("the coordinator went away during the checkpoint")
}

async fn restore(mesh: &LocalMesh, evidence: &mut Evidence) -> anyhow::Result<Restored> {
    use coordinator_restore_response::Event;
    let request = CoordinatorRestoreRequest::default();
    let mut events = mesh
        .coordinator()?
        .restore(request)
        .await
        .map_err(refused)?
        .into_inner();
    while let Some(message) = events.message().await.map_err(refused)? {
        match message.event {
            Some(Event::Plan(plan)) => {
                evidence
                    .plan
                    .extend(plan.episodes.into_iter().filter_map(|planned| {
                        let saved = planned.saved?;
                        Some((saved.rollout_id, (saved.attempt, planned.attempt)))
                    }))
            }
            Some(Event::Restored(restored)) => return Ok(restored),
            Some(Event::Abandoned(abandoned)) => {
                bail!(
                    "nothing was restored: {}: {}",
                    abandoned.reason,
                    abandoned.message
                )
            }
            _ => {}
        }
    }
    bail!("the coordinator went away during the restore")
}

async fn calls(ctl: &CtlClient) -> anyhow::Result<Vec<Call>> {
    let records = ctl.calls().await?;
    let call = |record: CallRecord| {
        Some(Call {
            rollout: record.rollout,
            attempt: record.attempt?,
            turn: record.turn?,
            tokens: record.sampled_tokens as u64,
            prefix: record.prefix_tokens as u64,
            finished: matches!(record.state, RecordState::Finished | RecordState::Returned),
        })
    };
    Ok(records.into_iter().filter_map(call).collect())
}

async fn effects(ctl: &CtlClient) -> anyhow::Result<Vec<Effect>> {
    let effects = ctl.effects().await?.into_iter().map(|effect| Effect {
        rollout: effect.rollout_id,
        attempt: effect.attempt,
        operation: (effect.turn, effect.index),
    });
    Ok(effects.collect())
}

fn refused(status: Status) -> anyhow::Error {
    match belay_mesh::status::from_status(&status) {
        Some(refusal) => anyhow!("{refusal}"),
        None => anyhow!("{}", belay_mesh::status::describe(&status)),
    }
}

/// Prints each stage with the time that it took.
struct Stages {
    started: Instant,
    quiet: bool,
}

impl Stages {
    fn done(&mut self, what: &str) {
        if !self.quiet {
            say!("{:>9}  {what}", show::duration(self.started.elapsed()));
        }
        self.started = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;

    #[test]
    fn names_are_rollout_ids_and_rows_are_json() {
        let mut names = BTreeSet::new();
        let mut environments = BTreeMap::<_, u32>::new();
        for n in 0..64 {
            assert!(RolloutId::new(&name(n)).is_ok());
            assert!(names.insert(name(n)));
            let (environment, row) = tasks::task(n);
            *environments.entry(environment).or_default() += 1;
            let row: serde_json::Value = serde_json::from_slice(&row).unwrap();
            assert!(row["responses_create_params"]["input"].is_array());
        }
        assert_eq!(
            environments,
            [("counter", 48), ("weather", 8), ("synonyms", 8)].into()
        );
    }
}
