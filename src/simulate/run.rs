//! One run: traffic, a policy, what came of it.

use std::rc::Rc;

use super::feed::{Delivery, Feed};
use super::measure::{Outcome, Times, WRONG, quantile};
use super::policy::{Policy, PolicyName, View};
use super::queue::Queue;
use super::replica::Replica;
use super::traffic::{Call, Traffic};
use super::truth::{candidates, regret};
use super::{Dice, Scenario};
use crate::clock::{MS, Time};
use crate::feed::FeedReplicaId;
use crate::feed::record::{LoadReport, Record};
use crate::feed::sync::Pull;

/// The bridge waits this long for more before it sends a batch, and sends one without content this often.
const LINGER: u64 = 4 * MS;
const HEARTBEAT: u64 = 100 * MS;
/// Ticks of a worker.
const TICK: u64 = 50 * MS;
/// From a pull to its answer.
const PULL: u64 = 20 * MS;
/// When the traffic begins: everybody is in step by then.
const START: u64 = 1000 * MS;
/// Readings of the load of each replica in an outcome.
const SAMPLES: u64 = 240;

/// What to look at besides.
#[derive(Clone, Copy, Default)]
pub struct Watch<'a> {
    /// Count wrong picks: costs as much again as the run.
    pub wrong_picks: bool,
    /// Called for each answered request.
    pub on_answer: Option<&'a (dyn Fn() + Sync)>,
}

enum Event {
    Arrive { session: usize, turn: usize },
    StepEnd(usize),
    Flush,
    Deliver(usize, Option<Rc<Delivery>>),
    Heartbeat,
    Answer(usize, Pull),
    Tick,
    Scrape,
    Sample,
    Grow(usize),
}

struct Ticket {
    call: Call,
    session: usize,
    turn: usize,
    gateway: usize,
    replica: usize,
    since: Time,
}

struct Gateway {
    policy: Box<dyn Policy>,
    own: Vec<u32>,
    lost: Vec<Rc<Delivery>>,
}

struct Simulation<'a> {
    scenario: &'a Scenario,
    traffic: &'a Traffic,
    watch: Watch<'a>,
    queue: Queue<Event>,
    replicas: Vec<Replica>,
    gateways: Vec<Gateway>,
    reports: Vec<LoadReport>,
    feed: Feed,
    flushing: bool,
    tickets: Vec<Option<Ticket>>,
    sessions_left: usize,
    dice: Dice,
    sample_every: u64,
    /// When the last session begins.
    window: Time,
    in_window: usize,
    ttft: Vec<f64>,
    total: Vec<f64>,
    wrong: usize,
    out: Outcome,
    last: Time,
}

/// Runs `traffic` by `policy` through `scenario`.
pub fn run(scenario: &Scenario, traffic: &Traffic, policy: PolicyName, watch: Watch<'_>) -> Outcome {
    assert_eq!(scenario.block_size, traffic.block_size, "traffic is cut into the blocks of the replicas");
    let gateways = (0..scenario.gateways.max(1)).map(|n| Gateway {
        policy: policy.build(scenario, n),
        own: Vec::new(),
        lost: Vec::new(),
    });
    let longest = traffic.sessions.iter().map(|s| s.start).max().unwrap_or(0);
    let mut simulation = Simulation {
        scenario,
        traffic,
        watch,
        queue: Queue::default(),
        replicas: Vec::new(),
        gateways: gateways.collect(),
        reports: Vec::new(),
        feed: Feed::new(scenario.block_size, scenario.blocks, scenario.event_loss > 0.0),
        flushing: false,
        tickets: Vec::new(),
        sessions_left: traffic.sessions.len(),
        dice: Dice::new(scenario.seed, 50),
        window: Time(START + longest),
        in_window: 0,
        sample_every: (longest / SAMPLES).max(100 * MS),
        ttft: Vec::new(),
        total: Vec::new(),
        wrong: 0,
        out: Outcome {
            policy: policy.label().into(),
            traffic: traffic.name.clone(),
            event_delay_ms: scenario.event_delay as f64 / 1e6,
            ..Outcome::default()
        },
        last: Time(START),
    };
    simulation.begin();
    while simulation.sessions_left > 0
        && let Some((now, event)) = simulation.queue.take()
    {
        simulation.happen(now, event);
    }
    simulation.outcome()
}

impl Simulation<'_> {
    fn begin(&mut self) {
        self.grow(self.scenario.replicas, Time(0));
        // The first batch is enough for a worker that then pulls an empty snapshot.
        let first = self.feed.batch();
        for gateway in &mut self.gateways {
            gateway.policy.events(Some(&first), Time(0));
            while let Some(pull) = gateway.policy.pull(Time(0)) {
                gateway.policy.answer(&self.feed.reply(pull), Time(0));
            }
        }
        for (session, is) in self.traffic.sessions.iter().enumerate() {
            self.queue.add(Time(START + is.start), Event::Arrive { session, turn: 0 });
        }
        for (at, more) in &self.scenario.scale_out {
            self.queue.add(Time(START + at), Event::Grow(*more));
        }
        self.queue.add(Time(HEARTBEAT), Event::Heartbeat);
        self.queue.add(Time(TICK), Event::Tick);
        self.queue.add(Time(self.scenario.scrape_every), Event::Scrape);
        self.queue.add(Time(START), Event::Sample);
    }

    fn grow(&mut self, by: usize, now: Time) {
        for _ in 0..by {
            let speed = self.scenario.speeds.get(self.replicas.len()).copied().unwrap_or(1.0);
            self.replicas.push(Replica::new(self.scenario, speed, now));
            self.feed.join();
            self.out.load.push(Vec::new());
        }
        self.reports.resize(self.replicas.len(), LoadReport::default());
        for gateway in &mut self.gateways {
            gateway.own.resize(self.replicas.len(), 0);
        }
    }

    fn happen(&mut self, now: Time, event: Event) {
        match event {
            Event::Arrive { session, turn } => self.arrive(session, turn, now),
            Event::StepEnd(replica) => self.step_end(replica, now),
            Event::Flush => {
                self.flushing = false;
                self.send(now);
            }
            Event::Deliver(gateway, delivery) => {
                let Gateway { policy, lost, .. } = &mut self.gateways[gateway];
                if delivery.is_some() {
                    // Who keeps account of gaps has them filled before it goes on.
                    lost.drain(..).for_each(|late| policy.events(Some(&late), now));
                }
                policy.events(delivery.as_ref(), now);
                self.ask(gateway, now);
            }
            Event::Answer(gateway, pull) => {
                // What waits to be sent goes first, so that the answer is of a batch.
                self.send(now);
                self.gateways[gateway].policy.answer(&self.feed.reply(pull), now);
                self.ask(gateway, now);
            }
            Event::Heartbeat => {
                self.send(now);
                self.queue.add(now.after(HEARTBEAT), Event::Heartbeat);
            }
            Event::Tick => {
                for at in 0..self.gateways.len() {
                    self.gateways[at].policy.tick(now);
                    self.ask(at, now);
                }
                self.queue.add(now.after(TICK), Event::Tick);
            }
            Event::Scrape => {
                let load = |(at, replica): (usize, &Replica)| Record::Load(FeedReplicaId(at as u32), replica.report());
                self.reports = self.replicas.iter().map(Replica::report).collect();
                self.feed.say(self.replicas.iter().enumerate().map(load));
                self.flush_soon(now);
                self.queue.add(now.after(self.scenario.scrape_every), Event::Scrape);
            }
            Event::Sample => {
                for (series, replica) in self.out.load.iter_mut().zip(&self.replicas) {
                    series.push(replica.requests() as u32);
                }
                self.queue.add(now.after(self.sample_every), Event::Sample);
            }
            Event::Grow(by) => {
                self.grow(by, now);
                self.flush_soon(now);
            }
        }
    }

    fn arrive(&mut self, session: usize, turn: usize, now: Time) {
        let from = &self.traffic.sessions[session];
        let is = from.turns[turn];
        let call = Call {
            id: self.tickets.len(),
            prompt: is.prompt,
            output: is.output,
            prompt_blocks: is.prompt / self.scenario.block_size as usize,
            chain: from.chain.clone(),
            opening: from.opening,
        };
        let at = self.dice.below(self.gateways.len());
        let gateway = &mut self.gateways[at];
        let view = View { now, own: &gateway.own, reports: &self.reports, truth: &self.replicas };
        let replica = gateway.policy.pick(&call, view).min(self.replicas.len() - 1);
        if self.watch.wrong_picks {
            let truth = candidates(&self.replicas, &call, self.scenario.block_size);
            self.wrong += usize::from(regret(&self.scenario.policy, &truth, &call, replica) >= WRONG);
        }
        let taken = self.replicas[replica].submit(&call);
        if !taken {
            self.out.refused += 1;
            gateway.policy.ended(call.id, now);
            self.tickets.push(None);
            self.next_turn(session, turn, now);
            return;
        }
        gateway.own[replica] += 1;
        self.tickets.push(Some(Ticket { call, session, turn, gateway: at, replica, since: now }));
        self.step_begin(replica, now);
    }

    fn step_begin(&mut self, replica: usize, now: Time) {
        if let Some(end) = self.replicas[replica].begin(now) {
            self.queue.add(end, Event::StepEnd(replica));
        }
    }

    fn step_end(&mut self, at: usize, now: Time) {
        let mut records = Vec::new();
        let progress = self.replicas[at].end(FeedReplicaId(at as u32), &mut records);
        if !records.is_empty() {
            self.feed.say(records);
            self.flush_soon(now);
        }
        for step in progress {
            let Some(ticket) = self.tickets[step.call].as_ref() else { continue };
            let gateway = &mut self.gateways[ticket.gateway];
            if step.first {
                gateway.policy.first_data(step.call, now);
                self.ttft.push(now.since(ticket.since) as f64 / 1e6);
                self.out.cached_tokens += step.cached as u64;
                self.out.prompt_tokens += ticket.call.prompt as u64;
            }
            if step.last {
                gateway.policy.ended(step.call, now);
                gateway.own[ticket.replica] -= 1;
                self.total.push(now.since(ticket.since) as f64 / 1e6);
                let (session, turn) = (ticket.session, ticket.turn);
                self.tickets[step.call] = None;
                self.out.requests += 1;
                self.in_window += usize::from(now <= self.window);
                self.last = now;
                if let Some(on_answer) = self.watch.on_answer {
                    on_answer();
                }
                self.next_turn(session, turn, now);
            }
        }
        self.step_begin(at, now);
    }

    fn next_turn(&mut self, session: usize, turn: usize, now: Time) {
        match self.traffic.sessions[session].turns.get(turn + 1) {
            Some(next) => self.queue.add(now.after(next.after), Event::Arrive { session, turn: turn + 1 }),
            None => self.sessions_left -= 1,
        }
    }

    fn ask(&mut self, gateway: usize, now: Time) {
        if let Some(pull) = self.gateways[gateway].policy.pull(now) {
            self.queue.add(now.after(PULL), Event::Answer(gateway, pull));
        }
    }

    fn flush_soon(&mut self, now: Time) {
        if !self.flushing {
            self.flushing = true;
            self.queue.add(now.after(LINGER.min(self.scenario.event_delay)), Event::Flush);
        }
    }

    fn send(&mut self, now: Time) {
        let delivery = self.feed.batch();
        let late = self.scenario.event_delay.saturating_sub(LINGER);
        for at in 0..self.gateways.len() {
            let lost = self.scenario.event_loss > 0.0 && self.dice.share() < self.scenario.event_loss;
            if lost && self.gateways[at].policy.has_gaps_filled() {
                self.gateways[at].lost.push(delivery.clone());
            }
            self.queue.add(now.after(late), Event::Deliver(at, (!lost).then(|| delivery.clone())));
        }
    }

    fn outcome(mut self) -> Outcome {
        let out = &mut self.out;
        self.ttft.sort_unstable_by(f64::total_cmp);
        self.total.sort_unstable_by(f64::total_cmp);
        out.seconds = self.last.since(Time(START)) as f64 / 1e9;
        out.hit_rate = out.cached_tokens as f64 / out.prompt_tokens.max(1) as f64;
        (out.ttft_ms, out.total_ms) = (Times::of(&self.ttft), Times::of(&self.total));
        out.ttft_curve = (0..=100).map(|n| quantile(&self.ttft, n as f64 / 100.0)).collect();
        // All at once: the whole time counts.
        let window = self.window.since(Time(START)) as f64 / 1e9;
        out.throughput = match self.in_window * 2 > out.requests {
            true => self.in_window as f64 / window,
            false => out.requests as f64 / out.seconds.max(1e-9),
        };
        // Of its own time: one that came late is not less busy for that.
        let share = |r: &Replica| r.busy as f64 / self.last.since(r.since.max(Time(START))).max(1) as f64;
        let busy: Vec<f64> = self.replicas.iter().map(share).collect();
        let prefilled: Vec<f64> = self.replicas.iter().map(|r| r.prefilled as f64).collect();
        out.busy = busy.iter().sum::<f64>() / busy.len() as f64;
        (out.busy_imbalance, out.prefill_imbalance) = (over_mean(&busy), over_mean(&prefilled));
        out.prefilled_tokens = self.replicas.iter().map(|r| r.prefilled).sum();
        out.prefilled = self.replicas.iter().map(|r| r.prefilled).collect();
        out.preemptions = self.replicas.iter().map(|r| r.totals().preemptions).sum();
        out.wrong_picks = self.watch.wrong_picks.then(|| self.wrong as f64 / self.tickets.len().max(1) as f64);
        out.load_every = self.sample_every as f64 / 1e9;
        self.out
    }
}

fn over_mean(numbers: &[f64]) -> f64 {
    let mean = numbers.iter().sum::<f64>() / numbers.len() as f64;
    if mean > 0.0 { numbers.iter().copied().fold(0.0, f64::max) / mean } else { 1.0 }
}
