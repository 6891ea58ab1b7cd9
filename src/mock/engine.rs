//! The scheduler in time: one task that runs step after step, each as long as its work takes.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use hashbrown::HashMap;
use serde::Serialize;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::publish::Publisher;
use super::scheduler::{Limits, NewRequest, RequestId, Scheduler, Step, Totals};

/// How far the engine may be behind its own clock.
const MAX_LAG: Duration = Duration::from_millis(20);

/// How long work takes.
#[derive(Clone, Copy, Debug)]
pub struct Speed {
    /// For each prompt token that is not cached.
    pub prefill: Duration,
    /// For each step in which some request gets an output token: they get theirs together.
    pub decode: Duration,
}

impl Speed {
    fn of(&self, step: &Step) -> Duration {
        let prefill = self.prefill.as_secs_f64() * step.prefill_tokens as f64;
        let decode = if step.decodes > 0 { self.decode } else { Duration::ZERO };
        Duration::from_secs_f64(prefill) + decode
    }
}

/// Progress of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Which of the requests that share the channel.
    pub choice: usize,
    /// Position of the token in the output.
    pub index: usize,
    /// Whether it is the last one.
    pub last: bool,
    /// Prompt tokens that came from the cache.
    pub cached_tokens: usize,
}

/// A request and where its progress goes. The engine aborts it when the receiver is dropped.
#[derive(Debug)]
pub struct Submission {
    /// The request.
    pub request: NewRequest,
    /// Comes back in [`Progress`].
    pub choice: usize,
    /// Tell of every token, not only of the last.
    pub every_token: bool,
    /// May be shared by the choices of one call.
    pub progress: mpsc::UnboundedSender<Progress>,
}

/// State of the engine after its last step.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Gauges {
    /// Requests in the batch.
    pub running: usize,
    /// Requests that wait.
    pub waiting: usize,
    /// Share of the blocks that requests use.
    pub usage: f64,
    /// Blocks with content.
    pub cached_blocks: usize,
    /// Number of the next batch of events.
    pub next_seq: u64,
    /// Tokens looked up in the cache.
    pub queried_tokens: u64,
    /// Of those, found.
    pub hit_tokens: u64,
    /// Prompt tokens of all requests.
    pub prompt_tokens: u64,
    /// Output tokens.
    pub output_tokens: u64,
    /// Requests that had to start again for want of blocks.
    pub preemptions: u64,
    /// Times that the engine was restarted.
    pub restarts: u64,
}

enum Command {
    Submit(Vec<Submission>),
    Reset(oneshot::Sender<bool>),
    Restart,
    Drop { batches: u64, from_replay: bool },
    Speed(Speed),
}

/// The way to the engine's task.
#[derive(Clone, Debug)]
pub struct Engine {
    commands: mpsc::UnboundedSender<Command>,
    gauges: Arc<Mutex<Gauges>>,
}

impl Engine {
    /// Starts the task on the current tokio runtime.
    pub fn start(limits: Limits, speed: Speed, publisher: Publisher) -> Engine {
        let (commands, queue) = mpsc::unbounded_channel();
        let gauges = Arc::new(Mutex::new(Gauges::default()));
        let driver = Driver {
            limits,
            speed,
            publisher,
            scheduler: Scheduler::new(limits),
            open: HashMap::new(),
            gauges: gauges.clone(),
            restarts: 0,
        };
        tokio::spawn(driver.run(queue));
        Engine { commands, gauges }
    }

    /// Submits the requests of one call; they enter the queue together.
    pub fn submit(&self, submissions: Vec<Submission>) {
        let _ = self.commands.send(Command::Submit(submissions));
    }

    /// Empties the prefix cache; false while requests run.
    pub async fn reset_cache(&self) -> bool {
        let (reply, answer) = oneshot::channel();
        let _ = self.commands.send(Command::Reset(reply));
        answer.await.unwrap_or(false)
    }

    /// As if the process died and came back: requests break off, the cache is cold, event numbers begin at 0 and
    /// nobody is told.
    pub fn restart(&self) {
        let _ = self.commands.send(Command::Restart);
    }

    /// See [`Publisher::drop_next`].
    pub fn drop_events(&self, batches: u64, from_replay: bool) {
        let _ = self.commands.send(Command::Drop { batches, from_replay });
    }

    /// Changes the speed from the next step on.
    pub fn set_speed(&self, speed: Speed) {
        let _ = self.commands.send(Command::Speed(speed));
    }

    /// See [`Gauges`].
    pub fn gauges(&self) -> Gauges {
        *self.gauges.lock().unwrap()
    }
}

struct Driver {
    limits: Limits,
    speed: Speed,
    publisher: Publisher,
    scheduler: Scheduler,
    open: HashMap<RequestId, (usize, bool, mpsc::UnboundedSender<Progress>)>,
    gauges: Arc<Mutex<Gauges>>,
    restarts: u64,
}

impl Driver {
    async fn run(mut self, mut queue: mpsc::UnboundedReceiver<Command>) {
        // Sleeps are coarse: a step ends at the time that it should, and the next one begins there, late or not.
        let mut now = Instant::now();
        loop {
            while let Ok(command) = queue.try_recv() {
                self.obey(command);
            }
            self.drop_abandoned();
            let Some(step) = self.scheduler.schedule() else {
                self.update_gauges();
                let Some(command) = queue.recv().await else { return };
                self.obey(command);
                now = Instant::now();
                continue;
            };
            self.update_gauges();
            // Time lost to a busy machine is made up for, but not without end.
            now = now.max(Instant::now() - MAX_LAG) + self.speed.of(&step);
            if now > Instant::now() {
                tokio::time::sleep_until(now).await;
            } else {
                tokio::task::yield_now().await;
            }
            self.finish(step).await;
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Submit(submissions) => submissions.into_iter().for_each(|submission| self.submit(submission)),
            Command::Reset(reply) => {
                let done = self.scheduler.reset_cache();
                // Who asked may look at once.
                self.update_gauges();
                let _ = reply.send(done);
            }
            Command::Restart => {
                self.scheduler = Scheduler::new(self.limits);
                self.open.clear();
                self.publisher.restart();
                self.restarts += 1;
            }
            Command::Drop { batches, from_replay } => self.publisher.drop_next(batches, from_replay),
            Command::Speed(speed) => self.speed = speed,
        }
        self.update_gauges();
    }

    fn submit(&mut self, submission: Submission) {
        let Submission { request, choice, every_token, progress } = submission;
        if let Some(id) = self.scheduler.submit(request) {
            self.open.insert(id, (choice, every_token, progress));
        }
    }

    fn drop_abandoned(&mut self) {
        let abandoned: Vec<RequestId> =
            self.open.iter().filter(|(_, (_, _, progress))| progress.is_closed()).map(|(id, _)| *id).collect();
        for id in abandoned {
            self.open.remove(&id);
            self.scheduler.abort(id);
        }
    }

    async fn finish(&mut self, step: Step) {
        let sampled = self.scheduler.finish(step);
        let events = self.scheduler.take_events();
        // Before the answers: a client that has its answer may ask again at once.
        self.publisher.publish(&events).await;
        self.update_gauges();
        for token in sampled {
            let Some((choice, every_token, progress)) = self.open.get(&token.id) else { continue };
            if *every_token || token.last {
                let _ = progress.send(Progress {
                    choice: *choice,
                    index: token.index,
                    last: token.last,
                    cached_tokens: token.cached_tokens,
                });
            }
            if token.last {
                self.open.remove(&token.id);
            }
        }
    }

    fn update_gauges(&self) {
        let Totals { queried_tokens, hit_tokens, prompt_tokens, output_tokens, preemptions } = self.scheduler.totals();
        *self.gauges.lock().unwrap() = Gauges {
            running: self.scheduler.running(),
            waiting: self.scheduler.waiting(),
            usage: self.scheduler.usage(),
            cached_blocks: self.scheduler.cached_blocks(),
            next_seq: self.publisher.next_seq(),
            queried_tokens,
            hit_tokens,
            prompt_tokens,
            output_tokens,
            preemptions,
            restarts: self.restarts,
        };
    }
}
