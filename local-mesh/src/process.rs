//! One child process in a process group of its own.
//!
//! A task owns the child and waits for it, so an exit is always seen and nothing is left unreaped. The child's stdin is held
//! open here; it ends when this process does, and children that watch it (`--exit-with-stdin`) end with it.

use std::{
    fmt,
    os::unix::process::ExitStatusExt as _,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::{ChildStdin, ChildStdout, Command},
    sync::{broadcast, watch},
};

use crate::{
    error::{LocalMeshError, Tail},
    logs,
    ready::Ready,
};

/// How long a killed process may take to be gone.
const EXIT_BOUND: Duration = Duration::from_secs(30);

/// How a process is started.
#[derive(Clone, Debug)]
pub struct Launch {
    /// What it is called in messages: its instance, `coordinator` or `fake-backend`.
    pub label: String,
    /// The binary.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
    /// Added to the environment.
    pub env: Vec<(String, String)>,
    /// Where stderr goes.
    pub log: PathBuf,
    /// How long it may take to be ready.
    pub ready_bound: Duration,
}

/// How a process ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Exit {
    /// By itself, with a status.
    Status(i32),
    /// By a signal.
    Signal(i32),
    /// It ended, and the system did not say how.
    Unknown,
}

impl Exit {
    fn of(status: std::io::Result<ExitStatus>) -> Self {
        let Ok(status) = status else {
            return Self::Unknown;
        };
        match (status.code(), status.signal()) {
            (Some(code), _) => Self::Status(code),
            (None, Some(signal)) => Self::Signal(signal),
            (None, None) => Self::Unknown,
        }
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(code) => write!(f, "exit status {code}"),
            Self::Signal(signal) => match signal_name(*signal) {
                Some(name) => write!(f, "signal {signal} ({name})"),
                None => write!(f, "signal {signal}"),
            },
            Self::Unknown => f.write_str("in an unknown way"),
        }
    }
}

/// The signals that end processes, as an operator knows them.
fn signal_name(number: i32) -> Option<&'static str> {
    const NAMES: [(Signal, &str); 9] = [
        (Signal::HUP, "SIGHUP"),
        (Signal::INT, "SIGINT"),
        (Signal::QUIT, "SIGQUIT"),
        (Signal::ILL, "SIGILL"),
        (Signal::ABORT, "SIGABRT"),
        (Signal::BUS, "SIGBUS"),
        (Signal::KILL, "SIGKILL"),
        (Signal::SEGV, "SIGSEGV"),
        (Signal::TERM, "SIGTERM"),
    ];
    NAMES
        .iter()
        .find(|(signal, _)| signal.as_raw() == number)
        .map(|(_, name)| *name)
}

/// A process that ended.
#[derive(Clone, Debug)]
pub struct Died {
    /// Which.
    pub label: String,
    /// Its process id.
    pub pid: u32,
    /// How.
    pub exit: Exit,
    /// It was killed or stopped from here.
    pub expected: bool,
    /// What it wrote last.
    pub tail: Tail,
}

/// A process that was ready once. Dropping it kills it.
#[derive(Debug)]
pub struct Process {
    label: String,
    log: PathBuf,
    pid: Pid,
    exit: watch::Receiver<Option<Exit>>,
    expected: Arc<AtomicBool>,
    _stdin: Option<ChildStdin>,
}

impl Process {
    /// Starts it, and waits until it is ready. Its end is told to `died`.
    pub async fn start(
        launch: &Launch,
        died: broadcast::Sender<Died>,
    ) -> Result<(Self, Ready), LocalMeshError> {
        let spawn = |source| LocalMeshError::Spawn {
            label: launch.label.clone(),
            program: launch.program.clone(),
            source,
        };
        let log = logs::open(&launch.log).map_err(|source| LocalMeshError::Write {
            path: launch.log.clone(),
            source,
        })?;
        let mut child = Command::new(&launch.program)
            .args(&launch.args)
            .envs(launch.env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .process_group(0)
            .spawn()
            .map_err(spawn)?;
        let number = child.id().and_then(|id| i32::try_from(id).ok());
        let pid = number
            .and_then(Pid::from_raw)
            .ok_or_else(|| spawn(std::io::Error::other("it has no process id")))?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let expected = Arc::new(AtomicBool::new(false));
        let (exit_sender, exit) = watch::channel(None);
        let process = Self {
            label: launch.label.clone(),
            log: launch.log.clone(),
            pid,
            exit,
            expected: expected.clone(),
            _stdin: stdin,
        };
        let (label, log) = (launch.label.clone(), launch.log.clone());
        tokio::spawn(async move {
            let exit = Exit::of(child.wait().await);
            let tail = logs::tail(&log);
            exit_sender.send_replace(Some(exit));
            // Nobody needs to listen.
            let _ = died.send(Died {
                label,
                pid: pid.as_raw_pid().unsigned_abs(),
                exit,
                expected: expected.load(Ordering::Relaxed),
                tail,
            });
        });
        let ready = process.until_ready(stdout, launch).await?;
        Ok((process, ready))
    }

    async fn until_ready(
        &self,
        stdout: Option<ChildStdout>,
        launch: &Launch,
    ) -> Result<Ready, LocalMeshError> {
        let first_line = async {
            let mut lines = BufReader::new(stdout?).lines();
            let line = lines.next_line().await.ok().flatten()?;
            // What else it may print must not fill the pipe.
            tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
            Some(line)
        };
        let line = match tokio::time::timeout(launch.ready_bound, first_line).await {
            Ok(Some(line)) => line,
            Ok(None) => {
                // It closed its stdout: it is ending, or as good as dead.
                let exit = self.kill().await?;
                return Err(LocalMeshError::EndedEarly {
                    label: self.label.clone(),
                    exit,
                    tail: self.tail(),
                });
            }
            Err(_) => {
                self.kill().await?;
                return Err(LocalMeshError::NotReady {
                    label: self.label.clone(),
                    bound: launch.ready_bound,
                    tail: self.tail(),
                });
            }
        };
        match Ready::read(&line) {
            Ok(ready) => Ok(ready),
            Err(why) => {
                self.kill().await?;
                Err(LocalMeshError::NoReadyLine {
                    label: self.label.clone(),
                    line,
                    why,
                    tail: self.tail(),
                })
            }
        }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.pid.as_raw_pid().unsigned_abs()
    }

    /// How it ended, if it did.
    pub fn exit(&self) -> Option<Exit> {
        *self.exit.borrow()
    }

    /// Where its stderr goes.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// What it wrote last.
    pub fn tail(&self) -> Tail {
        logs::tail(&self.log)
    }

    /// SIGKILL to the process group; whoever must know that it is gone calls [`kill`](Self::kill) as well.
    pub fn kill_now(&self) -> Result<(), LocalMeshError> {
        self.expected.store(true, Ordering::Relaxed);
        self.signal(Signal::KILL)
    }

    /// SIGKILL to the process group, then the exit is waited for. One that has ended stays as it ended.
    pub async fn kill(&self) -> Result<Exit, LocalMeshError> {
        self.expected.store(true, Ordering::Relaxed);
        self.signal(Signal::KILL)?;
        self.exited(EXIT_BOUND)
            .await
            .ok_or_else(|| LocalMeshError::ExitNotSeen {
                label: self.label.clone(),
                pid: self.pid(),
                bound: EXIT_BOUND,
            })
    }

    /// SIGTERM to the process group; what has not ended within the bound is killed.
    pub async fn stop(&self, bound: Duration) -> Result<Exit, LocalMeshError> {
        self.expected.store(true, Ordering::Relaxed);
        self.signal(Signal::TERM)?;
        match self.exited(bound).await {
            Some(exit) => Ok(exit),
            None => self.kill().await,
        }
    }

    /// SIGSTOP: it stays, and answers nothing.
    pub fn pause(&self) -> Result<(), LocalMeshError> {
        self.signal(Signal::STOP)
    }

    /// SIGCONT: it goes on.
    pub fn resume(&self) -> Result<(), LocalMeshError> {
        self.signal(Signal::CONT)
    }

    /// Waits for its end.
    pub async fn exited(&self, bound: Duration) -> Option<Exit> {
        let mut exit = self.exit.clone();
        let ended = tokio::time::timeout(bound, exit.wait_for(Option::is_some)).await;
        ended.ok()?.ok().and_then(|exit| *exit)
    }

    /// A process whose exit was seen gets no signal: its id may be another's by now.
    fn signal(&self, signal: Signal) -> Result<(), LocalMeshError> {
        if self.exit().is_some() {
            return Ok(());
        }
        match kill_process_group(self.pid, signal) {
            // It has just ended; the exit follows.
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(error) => Err(LocalMeshError::Signal {
                label: self.label.clone(),
                pid: self.pid(),
                source: error.into(),
            }),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.expected.store(true, Ordering::Relaxed);
        // Nothing is left to do where it fails: the closed stdin ends the child as well.
        let _ = self.signal(Signal::KILL);
    }
}
