//! The few HTTP/1 requests that the gateway makes of Envoy's admin interface.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// Sends one request and gives the body of a 200.
pub fn request(method: &str, at: SocketAddr, path: &str) -> Result<String> {
    let mut stream = TcpStream::connect(at).with_context(|| format!("connecting to {at}"))?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    write!(stream, "{method} {path} HTTP/1.1\r\nhost: {at}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).with_context(|| format!("reading {path} of {at}"))?;
    let answer = String::from_utf8(answer).with_context(|| format!("{at}{path}: not UTF-8"))?;
    let (head, body) = answer.split_once("\r\n\r\n").with_context(|| format!("{at}{path}: no HTTP answer"))?;
    let status = head.split(' ').nth(1).unwrap_or("");
    if status != "200" {
        bail!("{at}{path} answered {status}: {body}");
    }
    let chunked = head.lines().any(|l| l.eq_ignore_ascii_case("transfer-encoding: chunked"));
    if chunked { dechunk(body) } else { Ok(body.to_owned()) }
}

/// The content of a chunked body that has come whole.
fn dechunk(mut body: &str) -> Result<String> {
    let mut content = String::new();
    loop {
        let (size, rest) = body.split_once("\r\n").context("a chunk without its size")?;
        let size = usize::from_str_radix(size.trim(), 16).context("the size of a chunk")?;
        if size == 0 {
            return Ok(content);
        }
        content.push_str(rest.get(..size).context("a chunk that is cut off")?);
        body = rest.get(size + 2..).context("a chunk without its end")?;
    }
}
