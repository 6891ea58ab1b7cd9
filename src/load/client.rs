//! One request, sent and measured.

use std::time::{Duration, Instant};

use anyhow::Context;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use serde::Deserialize;

use super::Options;

/// A complete answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    /// What the assistant said.
    pub text: String,
    /// From the response header, if it is there.
    pub replica: Option<String>,
    /// To the first server-sent data; without streaming, to the end.
    pub first_token: Duration,
    /// To the end.
    pub total: Duration,
    /// As reported; 0 if not.
    pub usage: Usage,
}

/// The usage that the engine reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt: u64,
    /// Of those, from the cache.
    pub cached: u64,
    /// Tokens of the answer.
    pub completion: u64,
}

/// Why there is no answer, in a few words that many failures share.
pub type Outcome = Result<Answer, String>;

/// Sends requests of one run.
#[derive(Debug)]
pub struct Client {
    http: reqwest::Client,
    url: String,
    replica_header: String,
    stream: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Reply {
    choices: Vec<Choice>,
    usage: Option<ReplyUsage>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Choice {
    message: Content,
    delta: Content,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Content {
    content: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ReplyUsage {
    prompt_tokens: u64,
    completion_tokens: u64,
    prompt_tokens_details: Option<Details>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Details {
    cached_tokens: Option<u64>,
}

impl Client {
    /// A client with its own connections.
    pub fn new(options: &Options) -> anyhow::Result<Client> {
        let mut headers = HeaderMap::new();
        headers.insert("content-type", HeaderValue::from_static("application/json"));
        for (name, value) in &options.headers {
            let name: HeaderName = name.parse().with_context(|| format!("{name:?} is not the name of a header"))?;
            let value = value.parse().with_context(|| format!("the value of header {name} cannot be sent"))?;
            headers.append(name, value);
        }
        let mut http = reqwest::Client::builder()
            .default_headers(headers)
            .timeout(options.timeout)
            .tcp_nodelay(true)
            .no_proxy()
            .pool_max_idle_per_host(usize::MAX);
        if options.http2 {
            http = http.http2_prior_knowledge();
        }
        Ok(Client {
            http: http.build()?,
            url: complete(&options.url)?,
            replica_header: options.replica_header.clone(),
            stream: options.stream,
        })
    }

    /// Sends a body and reads the answer to its end.
    pub async fn send(&self, body: String) -> Outcome {
        let begin = Instant::now();
        let response = self.http.post(&self.url).body(body).send().await.map_err(|error| describe(&error))?;
        if !response.status().is_success() {
            return Err(format!("status {}", response.status().as_u16()));
        }
        let replica = response.headers().get(&self.replica_header);
        let replica = replica.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
        let mut answer = Answer { replica, ..Answer::default() };
        if self.stream {
            self.read_stream(response, begin, &mut answer).await?;
        } else {
            let bytes = response.bytes().await.map_err(|error| describe(&error))?;
            answer.first_token = begin.elapsed();
            take(&bytes, &mut answer)?;
        }
        answer.total = begin.elapsed();
        Ok(answer)
    }

    async fn read_stream(
        &self,
        mut response: reqwest::Response,
        begin: Instant,
        answer: &mut Answer,
    ) -> Result<(), String> {
        let mut events = Events::default();
        let mut first = None;
        while let Some(bytes) = response.chunk().await.map_err(|error| describe(&error))? {
            events.push(&bytes);
            while let Some(data) = events.next() {
                first.get_or_insert_with(|| begin.elapsed());
                if data == b"[DONE]" {
                    answer.first_token = first.unwrap_or_default();
                    return Ok(());
                }
                take(&data, answer)?;
            }
        }
        Err("stream ended early".to_owned())
    }
}

/// Server-sent events, cut out of the chunks of a body.
#[derive(Debug, Default)]
struct Events {
    buffer: Vec<u8>,
}

impl Events {
    fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The content of the next data line that is complete.
    fn next(&mut self) -> Option<Vec<u8>> {
        loop {
            let end = self.buffer.iter().position(|byte| *byte == b'\n')?;
            let line: Vec<u8> = self.buffer.drain(..=end).collect();
            if let Some(data) = line.trim_ascii().strip_prefix(b"data:") {
                return Some(data.trim_ascii().to_vec());
            }
        }
    }
}

fn take(json: &[u8], answer: &mut Answer) -> Result<(), String> {
    let reply: Reply = serde_json::from_slice(json).map_err(|_| "answer of an unknown form".to_owned())?;
    if let Some(Choice { message, delta }) = reply.choices.into_iter().next() {
        [message, delta].into_iter().filter_map(|part| part.content).for_each(|text| answer.text.push_str(&text));
    }
    if let Some(usage) = reply.usage {
        answer.usage = Usage {
            prompt: usage.prompt_tokens,
            cached: usage.prompt_tokens_details.and_then(|details| details.cached_tokens).unwrap_or(0),
            completion: usage.completion_tokens,
        };
    }
    Ok(())
}

fn complete(url: &str) -> anyhow::Result<String> {
    let url = url.trim_end_matches('/');
    let complete = match url {
        whole if whole.ends_with("/chat/completions") => whole.to_owned(),
        base if base.ends_with("/v1") => format!("{base}/chat/completions"),
        host => format!("{host}/v1/chat/completions"),
    };
    complete.parse::<reqwest::Url>().with_context(|| format!("{url:?} is not a URL"))?;
    Ok(complete)
}

fn describe(error: &reqwest::Error) -> String {
    let kind = if error.is_timeout() {
        "timeout"
    } else if error.is_connect() {
        "no connection"
    } else if error.is_body() || error.is_decode() {
        "answer broken off"
    } else {
        "connection broken"
    };
    kind.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_completed() {
        for url in ["http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/chat/completions"] {
            assert_eq!(complete(url).unwrap(), "http://h:1/v1/chat/completions");
        }
        assert!(complete("nowhere").is_err());
    }

    #[test]
    fn events_are_found_however_the_body_is_cut() {
        let body = b": comment\n\ndata: {\"a\":1}\n\nevent: x\r\ndata:2\r\n\r\ndata: [DONE]\n\n";
        for size in 1..body.len() {
            let (mut events, mut found) = (Events::default(), Vec::new());
            for chunk in body.chunks(size) {
                events.push(chunk);
                found.extend(std::iter::from_fn(|| events.next()));
            }
            assert_eq!(found, [b"{\"a\":1}".to_vec(), b"2".to_vec(), b"[DONE]".to_vec()]);
        }
    }

    #[test]
    fn whole_answers_and_chunks_are_read() {
        let mut answer = Answer::default();
        take(br#"{"choices":[{"delta":{"role":"assistant","content":"a"}}],"usage":null}"#, &mut answer).unwrap();
        take(br#"{"choices":[{"message":{"content":"b"}}]}"#, &mut answer).unwrap();
        take(
            br#"{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2,"prompt_tokens_details":null}}"#,
            &mut answer,
        )
        .unwrap();
        assert_eq!((answer.text.as_str(), answer.usage), ("ab", Usage { prompt: 9, cached: 0, completion: 2 }));
        assert!(take(b"oops", &mut answer).is_err());
    }
}
