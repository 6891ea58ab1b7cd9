//! A mock replica as clients, bridges and tests see it: over HTTP and ZMQ.

use std::time::Duration;

use kvroute::mock::events::Wire;
use kvroute::mock::{Config, Replica};
use reqwest::{Client, Response};
use rmpv::Value as Msgpack;
use serde_json::{Value, json};
use zeromq::{DealerSocket, Socket, SocketRecv, SocketSend, SubSocket, ZmqMessage};

/// Never waited for in a test that passes.
const PATIENCE: Duration = Duration::from_secs(60);

fn config() -> Config {
    Config { block_size: 4, output_tokens: 8, ..Config::default() }
}

fn chat(contents: &[&str]) -> Value {
    let role = |i| if i % 2 == 0 { "user" } else { "assistant" };
    let messages: Vec<Value> =
        contents.iter().enumerate().map(|(i, text)| json!({"role": role(i), "content": text})).collect();
    json!({"model": "mock", "messages": messages})
}

async fn post(replica: &Replica, path: &str, body: &Value) -> Response {
    Client::new().post(format!("{}{path}", replica.url())).json(body).send().await.unwrap()
}

async fn ask(replica: &Replica, body: &Value) -> Value {
    let response = post(replica, "/v1/chat/completions", body).await;
    assert_eq!(response.status(), 200);
    response.json().await.unwrap()
}

fn cached(answer: &Value) -> u64 {
    answer["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap()
}

fn text(answer: &Value) -> &str {
    answer["choices"][0]["message"]["content"].as_str().unwrap()
}

async fn subscribe(replica: &Replica) -> SubSocket {
    let mut socket = SubSocket::new();
    socket.connect(replica.kv_endpoint()).await.unwrap();
    socket.subscribe("").await.unwrap();
    socket
}

fn seq(frame: &[u8]) -> u64 {
    u64::from_be_bytes(frame.try_into().unwrap())
}

/// Sequence number and events of the next batch.
async fn next_batch(socket: &mut SubSocket) -> (u64, Vec<Msgpack>) {
    let message = tokio::time::timeout(PATIENCE, socket.recv()).await.unwrap().unwrap();
    let [topic, number, payload] = &message.into_vec()[..] else { panic!("three frames") };
    assert!(topic.is_empty());
    (seq(number), events(payload))
}

fn events(payload: &[u8]) -> Vec<Msgpack> {
    let batch = rmpv::decode::read_value(&mut &payload[..]).unwrap();
    batch[1].as_array().unwrap().clone()
}

/// Sends distinct requests until the subscription works: a PUB socket tells nobody when that is.
async fn warm_up(replica: &Replica, socket: &mut SubSocket) -> u64 {
    for attempt in 0.. {
        ask(replica, &chat(&[&format!("warm-up {attempt}")])).await;
        if let Ok(message) = tokio::time::timeout(Duration::from_millis(50), socket.recv()).await {
            let mut last = seq(&message.unwrap().into_vec()[1]);
            while last + 1 < replica.gauges().next_seq {
                last = next_batch(socket).await.0;
            }
            return last;
        }
    }
    unreachable!()
}

/// The batches from `start` that the replay socket has, and the number of frames of each message.
async fn replay(replica: &Replica, start: u64) -> (Vec<u64>, usize) {
    let mut socket = DealerSocket::new();
    socket.connect(replica.replay_endpoint()).await.unwrap();
    let mut request = ZmqMessage::from(bytes::Bytes::new());
    request.push_back(start.to_be_bytes().to_vec().into());
    socket.send(request).await.unwrap();
    let mut numbers = Vec::new();
    loop {
        let message = tokio::time::timeout(PATIENCE, socket.recv()).await.unwrap().unwrap().into_vec();
        let [.., number, payload] = &message[..] else { panic!("at least two frames") };
        if seq(number) == u64::MAX {
            assert!(payload.is_empty());
            return (numbers, message.len());
        }
        assert!(!events(payload).is_empty());
        numbers.push(seq(number));
    }
}

#[tokio::test]
async fn the_next_turn_finds_prompt_and_answer_in_the_cache() {
    let replica = Replica::start(config()).unwrap();
    let first = ask(&replica, &chat(&["0123456789"])).await;
    assert_eq!(first["usage"]["prompt_tokens"], 10);
    assert_eq!((cached(&first), first["usage"]["completion_tokens"].as_u64()), (0, Some(8)));
    // 10 + 8 tokens, the last of them without KV: four full blocks.
    let second = ask(&replica, &chat(&["0123456789", text(&first), "and now?"])).await;
    assert_eq!(cached(&second), 16);
    let again = ask(&replica, &chat(&["0123456789"])).await;
    assert_eq!(text(&again), text(&first));
    assert_eq!(replica.faults().sums().cached_tokens, 16 + 8);
}

#[tokio::test]
async fn a_stream_has_its_headers_before_the_prefill_and_comments_meanwhile() {
    let slow = Config { prefill_us_per_token: 1e9, keep_alive: Duration::from_millis(5), ..config() };
    let replica = Replica::start(slow).unwrap();
    let mut body = chat(&["0123456789"]);
    body["stream"] = true.into();
    // The prefill would take hours: that there is a response shows that it does not wait for it.
    let mut response = post(&replica, "/v1/chat/completions", &body).await;
    assert_eq!(response.status(), 200);
    let chunk = response.chunk().await.unwrap().unwrap();
    assert!(chunk.starts_with(b": "), "a comment, not {chunk:?}");
}

#[tokio::test]
async fn a_stream_gives_token_by_token_what_the_whole_answer_gives() {
    let replica = Replica::start(config()).unwrap();
    let mut body = chat(&["0123456789"]);
    let whole = ask(&replica, &body).await;
    body["stream"] = true.into();
    body["stream_options"] = json!({"include_usage": true});
    let response = post(&replica, "/v1/chat/completions", &body).await;
    assert!(response.headers()["content-type"].to_str().unwrap().starts_with("text/event-stream"));
    let stream = response.text().await.unwrap();
    let data: Vec<&str> = stream.split("\n\n").filter_map(|event| event.strip_prefix("data: ")).collect();
    assert_eq!(data.last(), Some(&"[DONE]"));
    let chunks: Vec<Value> = data[..data.len() - 1].iter().map(|chunk| serde_json::from_str(chunk).unwrap()).collect();
    let content: String = chunks.iter().filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str()).collect();
    assert_eq!(content, text(&whole));
    // The role, 8 tokens, the usage.
    assert_eq!(chunks.len(), 10);
    assert_eq!(chunks[0]["choices"][0]["delta"]["role"], "assistant");
    assert_eq!(chunks[8]["choices"][0]["finish_reason"], "stop");
    assert_eq!(cached(&chunks[9]), 8);
}

#[tokio::test]
async fn every_api_reports_its_cached_tokens_in_its_own_way() {
    let replica = Replica::start(config()).unwrap();
    let prompt = "0123456789";
    ask(&replica, &chat(&[prompt])).await;
    for (path, body, cached) in [
        ("/v1/completions", json!({"prompt": prompt}), "/usage/prompt_tokens_details/cached_tokens"),
        ("/v1/messages", json!({"messages": [{"role": "user", "content": prompt}]}), "/usage/cache_read_input_tokens"),
        ("/v1/responses", json!({"input": prompt}), "/usage/input_tokens_details/cached_tokens"),
    ] {
        let answer: Value = post(&replica, path, &body).await.json().await.unwrap();
        assert_eq!(answer.pointer(cached), Some(&json!(8)), "{path}: {answer}");
        let mut body = body;
        body["stream"] = true.into();
        let stream = post(&replica, path, &body).await.text().await.unwrap();
        let end = [("/v1/completions", "[DONE]"), ("/v1/messages", "message_stop"), ("/v1/responses", "completed")];
        let (_, end) = end.iter().find(|(of, _)| *of == path).unwrap();
        assert!(stream.contains(end), "{path}: {stream}");
    }
}

#[tokio::test]
async fn bytes_and_routing_headers_can_be_checked_from_outside() {
    let replica = Replica::start(Config { name: Some("a".into()), ..config() }).unwrap();
    let response = Client::new()
        .post(format!("{}/v1/chat/completions?x=1", replica.url()))
        .header("x-kvroute-replica", "MTI3LjAuMC4xOjE=")
        .header("authorization", "secret")
        .body("abc")
        .send()
        .await
        .unwrap();
    assert_eq!(response.status(), 400);
    let header = |name: &str| response.headers().get(name).map(|value| value.to_str().unwrap());
    assert_eq!(header("x-mock-replica"), Some("a"));
    assert_eq!(header("x-mock-got-x-kvroute-replica"), Some("MTI3LjAuMC4xOjE="));
    assert_eq!(header("x-mock-got-authorization"), None);
    assert_eq!(header("x-mock-body-bytes"), Some("3"));
    let sha256 = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    assert_eq!(header("x-mock-body-sha256"), Some(sha256));
    let seen = &replica.faults().requests()[0];
    assert_eq!((seen.path.as_str(), seen.status), ("/v1/chat/completions?x=1", 400));
    assert_eq!(seen.body_sha256, sha256);
}

#[tokio::test]
async fn what_the_engine_refuses_is_refused() {
    let replica = Replica::start(Config { max_model_len: 100, adapters: vec!["tuned".into()], ..config() }).unwrap();
    let mut body = chat(&["question"]);
    for (model, status) in [("other", 404), ("tuned", 200), ("mock", 200)] {
        body["model"] = model.into();
        assert_eq!(post(&replica, "/v1/chat/completions", &body).await.status(), status, "{model}");
    }
    let long = chat(&["0123456789".repeat(10).as_str()]);
    assert_eq!(post(&replica, "/v1/chat/completions", &long).await.status(), 400);
    assert_eq!(post(&replica, "/v1/chat/completions", &chat(&[""])).await.status(), 400);
    assert_eq!(post(&replica, "/v1/embeddings", &chat(&["a"])).await.status(), 404);
    assert_eq!(Client::new().get(format!("{}/nothing", replica.url())).send().await.unwrap().status(), 405);
}

#[tokio::test]
async fn events_arrive_with_numbers_and_can_be_replayed() {
    for (wire, frames) in [(Wire::Map, 4), (Wire::Array, 3)] {
        let replica = Replica::start(Config { wire, ..config() }).unwrap();
        let mut socket = subscribe(&replica).await;
        let last = warm_up(&replica, &mut socket).await;
        ask(&replica, &chat(&["0123456789"])).await;
        let (number, events) = next_batch(&mut socket).await;
        assert_eq!(number, last + 1);
        let kind = if wire == Wire::Map { &events[0]["type"] } else { &events[0][0] };
        assert_eq!(kind.as_str(), Some("BlockStored"));
        let next = replica.gauges().next_seq;
        assert_eq!(replay(&replica, 0).await, ((0..next).collect(), frames));
        assert_eq!(replay(&replica, next - 1).await.0, [next - 1]);
    }
}

#[tokio::test]
async fn dropped_events_leave_a_gap_that_replay_fills_or_not() {
    let replica = Replica::start(config()).unwrap();
    let mut socket = subscribe(&replica).await;
    for from_replay in [false, true] {
        let last = warm_up(&replica, &mut socket).await;
        replica.drop_events(1, from_replay);
        let question = format!("question {from_replay} 0123456789");
        // One batch for the prompt, others for the answer; the first one is dropped.
        ask(&replica, &chat(&[&question])).await;
        assert_eq!(next_batch(&mut socket).await.0, last + 2);
        assert_eq!(replay(&replica, 0).await.0.contains(&(last + 1)), !from_replay);
    }
}

#[tokio::test]
async fn a_reset_is_silent_until_the_next_request_and_a_restart_for_ever() {
    let replica = Replica::start(config()).unwrap();
    let mut socket = subscribe(&replica).await;
    warm_up(&replica, &mut socket).await;
    ask(&replica, &chat(&["0123456789"])).await;
    assert!(replica.gauges().cached_blocks > 0);
    let before = replica.gauges().next_seq;
    assert!(replica.reset_cache().await);
    assert_eq!((replica.gauges().cached_blocks, replica.gauges().next_seq), (0, before));
    assert_eq!(cached(&ask(&replica, &chat(&["0123456789"])).await), 0);
    let cleared = loop {
        let (number, events) = next_batch(&mut socket).await;
        if number >= before {
            break events;
        }
    };
    let kinds: Vec<&str> = cleared.iter().map(|event| event["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["AllBlocksCleared", "BlockStored"]);

    replica.restart();
    assert_eq!(cached(&ask(&replica, &chat(&["0123456789"])).await), 0);
    let restarted = loop {
        let (number, events) = next_batch(&mut socket).await;
        if number < before {
            break (number, events[0]["type"].as_str() == Some("BlockStored"));
        }
    };
    assert_eq!(restarted, (0, true));
    assert_eq!(replay(&replica, 0).await.0.first(), Some(&0));
}

#[tokio::test]
async fn failures_on_demand() {
    let replica = Replica::start(config()).unwrap();
    let admin = async |path: &str| {
        let response = post(&replica, path, &Value::Null).await;
        assert_eq!(response.status(), 200, "{path}");
    };
    admin("/mock/fail?requests=2&status=502").await;
    let mut statuses = Vec::new();
    for _ in 0..3 {
        statuses.push(post(&replica, "/v1/chat/completions", &chat(&["a"])).await.status().as_u16());
    }
    assert_eq!(statuses, [502, 502, 200]);

    admin("/mock/hang?requests=1").await;
    let url = format!("{}/v1/chat/completions", replica.url());
    let hanging = tokio::spawn(Client::new().post(url).json(&chat(&["a"])).send());
    while replica.faults().sums().requests < 4 {
        tokio::task::yield_now().await;
    }
    // Others are served meanwhile.
    ask(&replica, &chat(&["b"])).await;
    assert!(!hanging.is_finished());
    admin("/mock/release").await;
    assert_eq!(hanging.await.unwrap().unwrap().status(), 200);

    admin("/mock/health?status=503").await;
    assert_eq!(Client::new().get(format!("{}/health", replica.url())).send().await.unwrap().status(), 503);
}

#[tokio::test]
async fn metrics_have_the_names_of_the_engine() {
    let replica = Replica::start(config()).unwrap();
    ask(&replica, &chat(&["0123456789"])).await;
    ask(&replica, &chat(&["0123456789"])).await;
    let url = format!("{}/metrics", replica.url());
    let metrics = reqwest::get(url).await.unwrap().text().await.unwrap();
    let value = |name: &str| {
        let line =
            metrics.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("no {name}: {metrics}"));
        line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()
    };
    assert_eq!(value("vllm:num_requests_running{engine=\"0\",model_name=\"mock\"}"), 0.0);
    assert_eq!(value("vllm:num_requests_waiting{"), 0.0);
    assert_eq!(value("vllm:kv_cache_usage_perc{"), 0.0);
    assert_eq!(value("vllm:prefix_cache_queries_total{"), 20.0);
    assert_eq!(value("vllm:prefix_cache_hits_total{"), 8.0);
    assert_eq!(value("vllm:prompt_tokens_total{"), 20.0);
    assert!(metrics.contains("block_size=\"4\",num_gpu_blocks=\"4096\""));
    assert!(metrics.lines().filter(|line| !line.starts_with('#')).all(|line| line.starts_with("vllm:")));
}

#[tokio::test]
async fn a_client_that_goes_away_frees_its_blocks() {
    let endless = Config {
        decode_ms_per_token: 1.0,
        output_tokens: 1_000_000,
        max_model_len: 2_000_000,
        blocks: 500_000,
        ..config()
    };
    let replica = Replica::start(endless).unwrap();
    let mut body = chat(&["0123456789"]);
    body["stream"] = true.into();
    let mut response = post(&replica, "/v1/chat/completions", &body).await;
    response.chunk().await.unwrap();
    assert_eq!(replica.gauges().running, 1);
    drop(response);
    while replica.gauges().running > 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(replica.gauges().usage, 0.0);
}

#[tokio::test]
async fn a_stopped_replica_breaks_off_and_frees_its_port() {
    let slow = Config { decode_ms_per_token: 3.6e6, ..config() };
    let replica = Replica::start(slow).unwrap();
    let mut body = chat(&["0123456789"]);
    body["stream"] = true.into();
    let mut response = post(&replica, "/v1/chat/completions", &body).await;
    // The first token comes with the prefill.
    response.chunk().await.unwrap();
    let address = replica.http_addr();
    replica.stop();
    assert!(response.chunk().await.is_err(), "the stream breaks off");
    let again = Replica::start(Config { port: address.port(), ..config() }).unwrap();
    assert_eq!(again.http_addr(), address);
    ask(&again, &chat(&["a"])).await;
}
