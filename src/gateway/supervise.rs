//! Processes that belong together: one stream of their output, the end of any noticed, all of them ended.

use std::io::{IsTerminal, Write};
use std::os::unix::process::CommandExt;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::process::{Child, ChildStdin, Command};

/// Standard error, line by line, each with the name of who says it.
#[derive(Clone, Copy, Debug)]
pub struct Stream {
    colours: bool,
}

impl Default for Stream {
    fn default() -> Self {
        let wanted = std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
        Stream { colours: wanted && std::io::stderr().is_terminal() }
    }
}

impl Stream {
    /// One line, or several of the same one.
    pub fn say(self, name: &str, text: &str) {
        let mut out = std::io::stderr().lock();
        for line in text.lines() {
            // Each name has its colour.
            let code = 31 + name.bytes().map(u32::from).sum::<u32>() % 6;
            // Nobody may be reading any more: that ends nothing.
            let _ = match self.colours {
                true => writeln!(out, "\x1b[{code}m{name:<7}|\x1b[0m {line}"),
                false => writeln!(out, "{name:<7}| {line}"),
            };
        }
    }

    fn copy(self, name: &'static str, from: impl AsyncRead + Unpin + Send + 'static) -> tokio::task::JoinHandle<()> {
        tokio::spawn(async move {
            let (mut from, mut line) = (BufReader::new(from), Vec::new());
            while from.read_until(b'\n', &mut line).await.is_ok_and(|n| n > 0) {
                self.say(name, String::from_utf8_lossy(&line).trim_end());
                line.clear();
            }
        })
    }
}

/// A process and its output.
#[derive(Debug)]
pub struct Part {
    name: &'static str,
    child: Child,
    /// Waiting for the child would close it there.
    input: Option<ChildStdin>,
    copies: Vec<tokio::task::JoinHandle<()>>,
}

impl Part {
    /// Starts it, in a process group of its own: Ctrl-C on the terminal is for the caller to hear, who then ends it.
    /// Its standard input is open until it is stopped, or this process is gone.
    ///
    /// Envoy asks the kernel to be ended with the *thread* that starts it, so this is called on one that stays.
    pub fn start(stream: Stream, name: &'static str, mut command: std::process::Command) -> Result<Part> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let program = command.get_program().to_string_lossy().into_owned();
        let mut child = Command::from(command).spawn().with_context(|| format!("starting {program}"))?;
        let mut copies = Vec::new();
        copies.extend(child.stdout.take().map(|out| stream.copy(name, out)));
        copies.extend(child.stderr.take().map(|out| stream.copy(name, out)));
        let input = child.stdin.take();
        Ok(Part { name, child, input, copies })
    }

    /// Its name in the stream.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Its process id, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// Waits for its end.
    pub async fn ended(&mut self) -> std::io::Result<ExitStatus> {
        self.child.wait().await
    }

    /// Ends it: SIGTERM, and SIGKILL where that does not help in time. What it still says is waited for.
    pub async fn stop(mut self, patience: Duration) {
        // Not after it was waited for: the id may be another's by then.
        let pid = self.child.id().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
        if let Some(pid) = pid {
            let _ = kill_process(pid, Signal::TERM);
        }
        if tokio::time::timeout(patience, self.child.wait()).await.is_err() {
            let _ = self.child.kill().await;
        }
        drop(self.input);
        for copy in self.copies {
            let _ = tokio::time::timeout(Duration::from_secs(1), copy).await;
        }
    }
}
