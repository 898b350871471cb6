//! How far a task file is: a bar on a terminal, a line now and then elsewhere.

use std::{
    io::IsTerminal as _,
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressStyle};

/// Between two lines where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(10);

/// Counts, and shows.
pub struct Progress {
    bar: Option<ProgressBar>,
    quiet: bool,
    started: Instant,
    last_line: Instant,
    total: u64,
    finished: u64,
    failed: u64,
    rewards: f64,
}

impl Progress {
    /// Of so many rollouts; `quiet` shows nothing.
    pub fn new(total: u64, quiet: bool) -> Self {
        let on_terminal = std::io::stderr().is_terminal() && !quiet;
        let bar = on_terminal.then(|| {
            let style = ProgressStyle::with_template("{bar:32} {pos}/{len} {msg} {elapsed}");
            ProgressBar::new(total).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        });
        let now = Instant::now();
        Self {
            bar,
            quiet,
            started: now,
            last_line: now,
            total,
            finished: 0,
            failed: 0,
            rewards: 0.0,
        }
    }

    /// A rollout has its result.
    pub fn finished(&mut self, reward: f64) {
        self.finished += 1;
        self.rewards += reward;
        self.show();
    }

    /// A rollout has none.
    pub fn failed(&mut self, what: &str) {
        self.failed += 1;
        match &self.bar {
            Some(bar) => bar.println(what),
            None => eprintln!("{what}"),
        }
        self.show();
    }

    /// `None` before the first result.
    pub fn mean_reward(&self) -> Option<f64> {
        (self.finished > 0).then(|| self.rewards / self.finished as f64)
    }

    /// Finished rollouts a second.
    pub fn rate(&self) -> f64 {
        self.finished as f64 / self.started.elapsed().as_secs_f64().max(1e-9)
    }

    /// How many have a result, and how many have none.
    pub fn counts(&self) -> (u64, u64) {
        (self.finished, self.failed)
    }

    fn show(&mut self) {
        let message = format!(
            "{:.1}/s, mean reward {:.3}",
            self.rate(),
            self.mean_reward().unwrap_or(0.0)
        );
        if let Some(bar) = &self.bar {
            bar.set_message(message);
            bar.set_position(self.finished + self.failed);
        } else if !self.quiet && self.last_line.elapsed() >= LINE_EVERY {
            self.last_line = Instant::now();
            eprintln!("{}/{} {message}", self.finished + self.failed, self.total);
        }
    }

    /// Takes the bar away.
    pub fn end(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
