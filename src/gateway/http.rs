//! The few HTTP/1 requests that the gateway makes of Envoy's admin interface.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, bail};

/// Sends one request and gives the body of a 200.
pub fn request(method: &str, at: SocketAddr, path: &str) -> Result<String> {
    let mut stream = TcpStream::connect(at).with_context(|| format!("connecting to {at}"))?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    write!(stream, "{method} {path} HTTP/1.0\r\nhost: {at}\r\ncontent-length: 0\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).with_context(|| format!("reading {path} of {at}"))?;
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer.split_once("\r\n\r\n").with_context(|| format!("{at}{path}: no HTTP answer"))?;
    let status = head.split(' ').nth(1).unwrap_or("");
    if status != "200" {
        bail!("{at}{path} answered {status}: {body}");
    }
    Ok(body.to_owned())
}
