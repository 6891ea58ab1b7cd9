//! `kvroute top` on a terminal: what stands on its screen, as it is drawn, and what is left of it at the end.

use std::fs::File;
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::OpenptFlags;
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};
use serde_json::Value;

use crate::harness::{Conversation, Gateway, MODEL, Setup, eventually, free_address, words};

/// `kvroute top` behind a pseudo-terminal.
struct Top {
    child: Child,
    master: File,
    /// Kept open, so that its settings can be read after the end.
    slave: File,
    screen: Arc<Mutex<vt100::Parser>>,
    /// All that was written.
    bytes: Arc<Mutex<Vec<u8>>>,
}

/// A prompt that no other is like.
fn completion(seed: u64) -> Vec<u8> {
    serde_json::json!({"model": MODEL, "prompt": words(seed, 40), "max_tokens": 1}).to_string().into()
}

fn size(rows: u16, columns: u16) -> Winsize {
    Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }
}

fn arguments(gateway: &Gateway) -> Vec<String> {
    let admin = format!("http://{}", gateway.envoy.admin());
    ["top", "--admin", &admin].map(str::to_owned).to_vec()
}

impl Top {
    fn start(args: &[String], colour: bool) -> Top {
        let master = rustix::pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        rustix::pty::grantpt(&master).unwrap();
        rustix::pty::unlockpt(&master).unwrap();
        let name = rustix::pty::ptsname(&master, Vec::new()).unwrap();
        let slave = rustix::fs::open(&name, OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).unwrap();
        let (master, slave) = (File::from(master), File::from(slave));
        tcsetwinsize(&master, size(40, 140)).unwrap();
        // With a session of its own the terminal is its controlling one, as a shell's is.
        let mut command = Command::new("setsid");
        command.args(["--ctty", env!("CARGO_BIN_EXE_kvroute")]).args(args);
        command.env("TERM", "xterm-256color").env_remove("NO_COLOR").env_remove("KVROUTE_SECRET");
        if !colour {
            command.env("NO_COLOR", "1");
        }
        let end = || Stdio::from(slave.try_clone().unwrap());
        let child = command.stdin(end()).stdout(end()).stderr(end()).spawn().unwrap();
        let screen = Arc::new(Mutex::new(vt100::Parser::new(40, 140, 0)));
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let (mut from, shown, all) = (master.try_clone().unwrap(), screen.clone(), bytes.clone());
        std::thread::spawn(move || {
            let mut some = [0; 4096];
            // Ends with the last holder of the other end.
            while let Ok(n) = from.read(&mut some) {
                if n == 0 {
                    return;
                }
                shown.lock().unwrap().process(&some[..n]);
                all.lock().unwrap().extend_from_slice(&some[..n]);
            }
        });
        Top { child, master, slave, screen, bytes }
    }

    fn text(&self) -> String {
        self.screen.lock().unwrap().screen().contents()
    }

    /// Waits until the screen shows a fault, and says how long that took: for scripts/fault-times.
    async fn tells(&self, fault: &str, begun: Instant, fits: impl Fn(&str) -> bool) -> String {
        let text = self.shows(fault, fits).await;
        eprintln!("SHOWN top | {fault} | {:.2} s", begun.elapsed().as_secs_f64());
        text
    }

    /// Waits until the screen has what fits.
    async fn shows(&self, what: &str, fits: impl Fn(&str) -> bool) -> String {
        eventually(&format!("the screen shows: {what}"), async || Some(self.text()).filter(|text| fits(text))).await
    }

    fn press(&mut self, keys: &[u8]) {
        self.master.write_all(keys).unwrap();
    }

    /// Canonical input with echo, as a shell has it.
    fn cooked(&self) -> bool {
        let modes = tcgetattr(&self.slave).unwrap().local_modes;
        modes.contains(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG)
    }

    /// Waits for its end; the terminal must be as it was.
    async fn leaves(&mut self) {
        let status = eventually("top has ended", async || self.child.try_wait().unwrap()).await;
        assert!(status.success(), "{status}: {}", self.text());
        assert!(self.cooked());
        eventually("the screen of before is back, with its cursor", async || {
            let screen = self.screen.lock().unwrap();
            let screen = screen.screen();
            (!screen.alternate_screen() && !screen.hide_cursor()).then_some(())
        })
        .await;
    }
}

impl Drop for Top {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn faults_show_on_the_screen_and_nothing_stays_of_it() {
    let mut gateway = Gateway::start(Setup::default()).await;
    let mut conversation = Conversation::with_system(&words(1, 300));
    let home = gateway.turn(&mut conversation, "one").await.replica;
    gateway.settled().await;
    assert_eq!(gateway.turn(&mut conversation, "two").await.replica, home);
    gateway.settled().await;

    let mut top = Top::start(&arguments(&gateway), true);
    let well = top.shows("all is well", |text| text.contains("nothing is wrong") && text.contains("routed 2")).await;
    assert!(!top.cooked() && top.screen.lock().unwrap().screen().alternate_screen());
    for replica in gateway.replicas.iter().flatten() {
        let address = replica.http_addr().to_string();
        let line = well.lines().find(|line| line.starts_with(&address)).unwrap_or_else(|| panic!("{address}: {well}"));
        assert!(line.contains("exact"), "{line}");
    }
    assert!(well.contains("hit share") && !well.contains("hit share -"), "{well}");
    assert!(well.contains("cache ") && well.contains("kvroute top"), "{well}");
    let decided = |text: &str| text.lines().filter(|line| line.starts_with("routed ")).count() == 2;
    top.shows("the last decisions", |text| text.contains("\nlast decisions ") && decided(text)).await;

    // A replica begins anew: its cache is lost.
    let restarted = gateway.index_of(&home);
    gateway.replica(restarted).restart();
    gateway.nudge(restarted).await;
    top.tells("a replica begins anew", Instant::now(), |text| text.contains("began anew: its cache was lost")).await;

    // One hangs: its connections stay, and nothing is answered.
    let hangs = (restarted + 2) % 3;
    let line = format!("!! {}: its API does not answer", gateway.replica(hangs).http_addr());
    gateway.replica(hangs).faults().freeze(true);
    let fault = top.tells("a replica hangs", Instant::now(), |text| text.contains(&line)).await;
    assert!(!fault.contains("nothing is wrong"), "{fault}");
    gateway.replica(hangs).faults().freeze(false);
    top.shows("it answers again", |text| !text.contains(&line)).await;

    // Events are lost for good.
    let line = format!(" ! {}: catching_up: gap", gateway.replica(hangs).http_addr());
    gateway.behind(hangs, "/v1/completions", completion(6)).await;
    gateway.settled().await;
    gateway.replica(hangs).drop_events(1, true);
    gateway.nudge(hangs).await;
    gateway.behind(hangs, "/v1/completions", completion(7)).await;
    top.tells("events are lost", Instant::now(), |text| text.contains(&line)).await;

    // Another one dies.
    let dying = (restarted + 1) % 3;
    let address = gateway.replica(dying).http_addr().to_string();
    gateway.begin_kill(dying);
    let begun = Instant::now();
    top.tells("a replica dies", begun, |text| text.contains(&format!("!! {address}: its API does not answer"))).await;
    let trust = format!("!! {address}: stale: disconnected");
    top.tells("a replica dies: its events are stale", begun, |text| text.contains(&trust)).await;

    // The window becomes small: the line of that replica still says it.
    tcsetwinsize(&top.master, size(24, 60)).unwrap();
    top.screen.lock().unwrap().screen_mut().set_size(24, 60);
    kill_process(Pid::from_child(&top.child), Signal::WINCH).unwrap();
    let row = |text: &str| text.lines().any(|line| line.starts_with(&address) && line.contains("disconnected"));
    let small = top.shows("the dead replica, in a small window", |text| row(text) && !text.contains("gaps")).await;
    assert!(small.lines().next().is_some_and(|line| line.starts_with("kvroute top")), "{small}");

    gateway.kill_bridge();
    top.tells("the bridge dies", Instant::now(), |text| text.contains("!! bridge: ")).await;

    top.press(b"q");
    top.leaves().await;
    assert!(top.bytes.lock().unwrap().windows(5).any(|some| some.starts_with(b"\x1b[3")), "colours");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_way_out_leaves_the_terminal_clean_and_no_color_has_none() {
    // Nothing listens there: the view says so, and its keys work all the same.
    let admin = format!("http://{}", free_address());
    let args = ["top", "--admin", &admin, "--secret", "s", "--interval", "0.2"].map(str::to_owned);
    for way in [&b"q"[..], b"\x1b", b"\x03", b""] {
        let mut top = Top::start(&args, false);
        top.shows("who does not answer", |text| text.contains("!! Envoy: ")).await;
        match way {
            b"" => kill_process(Pid::from_child(&top.child), Signal::TERM).unwrap(),
            keys => top.press(keys),
        }
        top.leaves().await;
        let bytes = top.bytes.lock().unwrap();
        let text = String::from_utf8_lossy(&bytes);
        // Colours are 30 to 37, 90 to 97, and 38 with more.
        let coloured = text
            .split("\x1b[")
            .skip(1)
            .filter_map(|rest| rest.split_once('m'))
            .any(|(codes, _)| codes.split(';').any(|code| matches!(code.parse(), Ok(30..=38 | 40..=48 | 90..=97))));
        assert!(!coloured, "{text:?}");
    }
}

fn run(args: &[String]) -> (Option<i32>, String) {
    let done = Command::new(env!("CARGO_BIN_EXE_kvroute")).args(args).env_remove("KVROUTE_SECRET").output().unwrap();
    (done.status.code(), String::from_utf8(done.stdout).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn one_look_as_text_and_as_json() {
    let mut gateway = Gateway::start(Setup::default()).await;
    let mut conversation = Conversation::with_system(&words(1, 300));
    gateway.turn(&mut conversation, "one").await;
    gateway.settled().await;
    let args = arguments(&gateway);
    let with = |flag: &str| [args.clone(), vec![flag.to_owned()]].concat();
    let (code, text) = run(&with("--once"));
    assert_eq!(code, Some(0), "{text}");
    assert!(text.starts_with("nothing is wrong\n") && !text.contains('\x1b'), "{text}");
    let (code, json) = run(&with("--json"));
    let view: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((code, view["requests"]["all"]["total"].as_u64()), (Some(0), Some(1)), "{json}");
    assert_eq!(view["replicas"].as_array().map(Vec::len), Some(3), "{json}");
    assert_eq!(view["workers"].as_array().map(Vec::len), Some(2), "{json}");
    // Off a terminal the live view refuses, and says what to do.
    assert_eq!(run(&args).0, Some(1));

    gateway.kill_bridge();
    let (code, json) = run(&with("--json"));
    let view: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((code, view["problems"][0]["place"].as_str()), (Some(1), Some("bridge")), "{json}");
}
