//! The simulator against the gateway: the same conversations through `kvroute simulate`'s replicas and through a real
//! Envoy with mock replicas find the same share of their prompts cached.

use std::time::{Duration, Instant};

use kvroute::blocks::{Chain, TokenId, namespace};
use kvroute::simulate::traffic::{Session, Traffic, Turn};
use kvroute::simulate::{self, Dice, PolicyName, Scenario, Watch};
use serde_json::json;

use crate::harness::{BLOCK, Gateway, MODEL, Setup, client};

/// The shares may be so far apart.
const TOLERANCE: f64 = 0.03;
/// Ids below this are plain tokens of the model.
const VOCABULARY: u64 = 100_000;

/// One user: what is said, and when. A turn comes some time after the answer to the one before.
struct Talk {
    start: Duration,
    /// The system prompt, and the questions.
    system: Vec<TokenId>,
    turns: Vec<(Duration, Vec<TokenId>)>,
}

/// What one answer has.
const ANSWER: usize = 40;

fn tokens(seed: u64, count: usize) -> Vec<TokenId> {
    let mut dice = Dice::new(seed, 3);
    (0..count).map(|_| (dice.draw() % VOCABULARY) as TokenId).collect()
}

/// Users that come one after the other, behind a few system prompts.
fn talks(count: usize, seconds: f64) -> Vec<Talk> {
    let mut dice = Dice::new(5, 1);
    let ms = |n: usize| Duration::from_millis(n as u64);
    (0..count as u64)
        .map(|n| Talk {
            start: Duration::from_secs_f64(dice.share() * seconds),
            system: tokens(n % 5, 700),
            turns: (0..dice.between(2, 5) as u64)
                .map(|turn| (ms(dice.between(200, 1500)), tokens(1000 + n * 10 + turn, dice.between(50, 400))))
                .collect(),
        })
        .collect()
}

/// The same for the simulator, which needs block hashes alone: what an answer says does not matter.
fn traffic(talks: &[Talk]) -> Traffic {
    let session = |(n, talk): (usize, &Talk)| {
        let (mut chain, mut hashes) = (Chain::new(namespace("", "simulated", None, None), BLOCK), Vec::new());
        chain.extend(&talk.system, &mut hashes);
        let (mut said, mut turns) = (talk.system.len(), Vec::new());
        for (turn, (after, question)) in talk.turns.iter().enumerate() {
            chain.extend(question, &mut hashes);
            said += question.len();
            let after = if turn == 0 { 0 } else { after.as_nanos() as u64 };
            turns.push(Turn { after, prompt: said, output: ANSWER });
            chain.extend(&tokens(1_000_000 + n as u64 * 10 + turn as u64, ANSWER), &mut hashes);
            said += ANSWER;
        }
        Session { start: talk.start.as_nanos() as u64, chain: hashes.into(), opening: n as u64, turns }
    };
    let sessions = talks.iter().enumerate().map(session).collect();
    Traffic { name: "talks".into(), about: String::new(), sessions, block_size: BLOCK }
}

/// Prompt and cached tokens of one user's requests.
async fn say(gateway: &Gateway, talk: &Talk, begin: Instant) -> (u64, u64) {
    let client = client();
    tokio::time::sleep_until((begin + talk.start).into()).await;
    let (mut prompt, mut sums) = (talk.system.clone(), (0, 0));
    for (turn, (after, question)) in talk.turns.iter().enumerate() {
        if turn > 0 {
            tokio::time::sleep(*after).await;
        }
        prompt.extend(question);
        let body = json!({"model": MODEL, "prompt": prompt, "max_tokens": ANSWER, "return_token_ids": true});
        let answer = gateway.post_with(&client, "/v1/completions", body.to_string().into_bytes(), &[]).await;
        assert_eq!((answer.status, answer.prompt_tokens()), (200, prompt.len() as u64), "{answer:?}");
        sums = (sums.0 + answer.prompt_tokens(), sums.1 + answer.cached_tokens());
        let said = answer.json["choices"][0]["token_ids"].as_array().unwrap();
        assert_eq!(said.len(), ANSWER);
        prompt.extend(said.iter().map(|id| id.as_u64().unwrap() as TokenId));
    }
    sums
}

async fn compare(replicas: usize, users: usize, blocks: u32) {
    let talks = talks(users, 12.0);
    let scenario = Scenario {
        replicas,
        block_size: BLOCK,
        blocks,
        max_batch: 32,
        prefill_us: 100.0,
        decode_ms: 3.0,
        context_us: 0.0,
        scrape_every: 1_000_000_000,
        ..Scenario::default()
    };
    let mut setup = Setup { replicas, ..Setup::default() };
    (setup.mock.blocks, setup.mock.max_batch, setup.mock.step_tokens) =
        (blocks, scenario.max_batch, scenario.step_tokens);
    (setup.mock.prefill_us_per_token, setup.mock.decode_ms_per_token) = (scenario.prefill_us, scenario.decode_ms);
    setup.mock.output_tokens = ANSWER as u64;
    let gateway = Gateway::start(setup).await;
    let begin = Instant::now();
    let all = futures::future::join_all(talks.iter().map(|talk| say(&gateway, talk, begin))).await;
    let (prompt, cached) = all.iter().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    let real = cached as f64 / prompt as f64;

    let traffic = traffic(&talks);
    let of = |policy, seed| {
        let outcome = simulate::run(&Scenario { seed, ..scenario.clone() }, &traffic, policy, Watch::default());
        assert_eq!((outcome.prompt_tokens, outcome.refused), (prompt, 0));
        outcome.hit_rate
    };
    let seeds = 1..6u64;
    let mean = |policy| seeds.clone().map(|seed| of(policy, seed)).sum::<f64>() / seeds.clone().count() as f64;
    let (simulated, by_chance) = (mean(PolicyName::Kvroute), mean(PolicyName::Random));
    let share = |share: f64| format!("{:.2} %", share * 100.0);
    eprintln!(
        "{replicas} replicas, {} requests, {prompt} prompt tokens: cached {} in Envoy, {} simulated ({} at random)",
        traffic.requests(),
        share(real),
        share(simulated),
        share(by_chance)
    );
    assert!((real - simulated).abs() <= TOLERANCE, "{} in Envoy, {} simulated", share(real), share(simulated));
    // A tolerance that another policy would meet as well would prove nothing.
    assert!(simulated - by_chance > 3.0 * TOLERANCE, "{} simulated, {} at random", share(simulated), share(by_chance));
}

/// Caches that hold about two thirds of what is said.
#[tokio::test(flavor = "multi_thread")]
async fn with_three_replicas() {
    compare(3, 40, 700).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn with_eight_replicas() {
    compare(8, 80, 500).await;
}
