//! The screen: looks that come in, keys, and a terminal that is left as it was.

use std::collections::VecDeque;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::Paragraph;
use ratatui::{DefaultTerminal, Frame};

use super::draw::{self, Palette};
use super::seen::{Asker, Seen};
use super::view::View;

/// Rates are over this time.
const WINDOW_MS: u64 = 10_000;
/// How long a key may wait for what has come in meanwhile.
const TICK: Duration = Duration::from_millis(50);

enum Message {
    Look(Box<Seen>),
    /// A signal says to leave.
    Leave,
}

/// Shows until a key or a signal says to leave.
pub fn run(asker: Asker, interval: Duration, title: &str) -> Result<ExitCode> {
    use std::io::IsTerminal;
    ensure!(
        std::io::stdout().is_terminal() && std::io::stdin().is_terminal(),
        "top needs a terminal; --once prints one look as text, --json as JSON"
    );
    let colour = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let (tell, heard) = sync_channel(4);
    std::thread::Builder::new().name("looks".into()).spawn(move || look(asker, interval, &tell))?;
    // Its panic hook puts the terminal back, too.
    let mut terminal = ratatui::try_init().context("the terminal cannot be used")?;
    let mut screen = Screen::new(title, interval, Palette { colour });
    let result = screen.show(&mut terminal, &heard);
    ratatui::restore();
    result.map(|()| ExitCode::SUCCESS)
}

/// Looks for as long as anybody wants to see.
fn look(mut asker: Asker, interval: Duration, tell: &SyncSender<Message>) {
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return };
    runtime.block_on(async {
        let told = tell.clone();
        tokio::spawn(async move {
            use tokio::signal::unix::{SignalKind, signal};
            let (term, hup) = (signal(SignalKind::terminate()), signal(SignalKind::hangup()));
            let (Ok(mut term), Ok(mut hup)) = (term, hup) else { return };
            tokio::select! { _ = term.recv() => {}, _ = hup.recv() => {} }
            let _ = told.send(Message::Leave);
        });
        let mut clock = tokio::time::interval(interval);
        clock.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            clock.tick().await;
            let seen = Box::new(asker.look().await);
            if tell.send(Message::Look(seen)).is_err() {
                return;
            }
        }
    });
}

struct Screen {
    title: String,
    palette: Palette,
    looks: VecDeque<Seen>,
    view: Option<View>,
    /// Lines above the screen.
    above: usize,
}

/// What a key asks for.
#[derive(Debug, PartialEq, Eq)]
enum Wish {
    Leave,
    /// So many lines down.
    Move(isize),
    Nothing,
}

impl Screen {
    fn new(title: &str, interval: Duration, palette: Palette) -> Screen {
        let title = format!("kvroute top   {title}   every {} s   q leaves", interval.as_secs_f64());
        Screen { title, palette, looks: VecDeque::new(), view: None, above: 0 }
    }

    fn show(&mut self, terminal: &mut DefaultTerminal, heard: &Receiver<Message>) -> Result<()> {
        let mut stale = true;
        loop {
            loop {
                match heard.try_recv() {
                    Ok(Message::Look(seen)) => {
                        self.take(*seen);
                        stale = true;
                    }
                    Ok(Message::Leave) | Err(TryRecvError::Disconnected) => return Ok(()),
                    Err(TryRecvError::Empty) => break,
                }
            }
            if std::mem::take(&mut stale) {
                terminal.draw(|frame| self.draw(frame))?;
            }
            if !event::poll(TICK)? {
                continue;
            }
            match event::read()? {
                Event::Key(key) => match wish(key, usize::from(terminal.size()?.height)) {
                    Wish::Leave => return Ok(()),
                    Wish::Move(lines) => self.above = self.above.saturating_add_signed(lines),
                    Wish::Nothing => continue,
                },
                Event::Resize(..) => {}
                _ => continue,
            }
            stale = true;
        }
    }

    fn take(&mut self, seen: Seen) {
        let since = seen.at_ms.saturating_sub(WINDOW_MS);
        // One at or before the window's start stays, so that it is a whole window.
        while self.looks.get(1).is_some_and(|next| next.at_ms <= since) {
            self.looks.pop_front();
        }
        self.view = Some(View::of(&seen, self.looks.front()));
        self.looks.push_back(seen);
    }

    fn draw(&mut self, frame: &mut Frame<'_>) {
        let [top, rest] = Layout::vertical([Constraint::Length(1), Constraint::Fill(1)]).areas(frame.area());
        let envoy = self.view.as_ref().and_then(|view| view.envoy.as_deref());
        let title = format!("{}{}", self.title, envoy.map_or(String::new(), |version| format!("   Envoy {version}")));
        let bar = Style::new().add_modifier(Modifier::REVERSED);
        frame.render_widget(Paragraph::new(Line::raw(title)).style(bar), top);
        let lines = match &self.view {
            Some(view) => draw::lines(view, rest.width, self.palette),
            None => vec![Line::raw("asking …")],
        };
        self.above = self.above.min(lines.len().saturating_sub(usize::from(rest.height)));
        let above = u16::try_from(self.above).unwrap_or(u16::MAX);
        frame.render_widget(Paragraph::new(lines).scroll((above, 0)), rest);
    }
}

fn wish(key: KeyEvent, height: usize) -> Wish {
    if key.kind == KeyEventKind::Release {
        return Wish::Nothing;
    }
    let page = isize::try_from(height / 2).unwrap_or(1).max(1);
    match key.code {
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => Wish::Leave,
        KeyCode::Char('q') | KeyCode::Esc => Wish::Leave,
        KeyCode::Down | KeyCode::Char('j') => Wish::Move(1),
        KeyCode::Up | KeyCode::Char('k') => Wish::Move(-1),
        KeyCode::PageDown | KeyCode::Char(' ') => Wish::Move(page),
        KeyCode::PageUp => Wish::Move(-page),
        KeyCode::Home => Wish::Move(isize::MIN),
        _ => Wish::Nothing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::top::view::Health;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn screen() -> Screen {
        Screen::new("http://a", Duration::from_secs(1), Palette { colour: false })
    }

    #[test]
    fn rates_are_over_the_window() {
        let mut screen = screen();
        for second in 0..30 {
            let stats = [("requests_total.outcome.routed".to_owned(), second * 7)].into();
            screen.take(Seen { at_ms: second * 1000, stats, ..Seen::default() });
        }
        let requests = screen.view.unwrap().requests;
        assert_eq!((requests.window_seconds, requests.all.per_second), (Some(10.0), Some(7.0)));
        assert_eq!(screen.looks.len(), 11);
    }

    #[test]
    fn a_small_screen_shows_what_fits_and_moves_no_further_than_the_end() {
        let mut screen = screen();
        let silent = vec![("Envoy", "does not answer".to_owned())];
        screen.take(Seen { silent, ..Seen::default() });
        assert_eq!(screen.view.as_ref().unwrap().problems[0].health, Health::Bad);
        let mut terminal = Terminal::new(TestBackend::new(30, 4)).unwrap();
        terminal.draw(|frame| screen.draw(frame)).unwrap();
        let shown = terminal.backend().to_string();
        assert!(shown.contains("kvroute top") && shown.contains("!! Envoy: does not answer"), "{shown}");
        screen.above = 1000;
        terminal.draw(|frame| screen.draw(frame)).unwrap();
        let shown = terminal.backend().to_string();
        assert!(shown.contains("no replica is known") && screen.above < 20, "{shown}");
        terminal.backend_mut().resize(5, 1);
        terminal.draw(|frame| screen.draw(frame)).unwrap();
    }

    #[test]
    fn keys() {
        let press = |code, modifiers| wish(KeyEvent::new(code, modifiers), 20);
        for code in [KeyCode::Char('q'), KeyCode::Esc] {
            assert_eq!(press(code, KeyModifiers::NONE), Wish::Leave);
        }
        assert_eq!(press(KeyCode::Char('c'), KeyModifiers::CONTROL), Wish::Leave);
        assert_eq!(press(KeyCode::Char('c'), KeyModifiers::NONE), Wish::Nothing);
        assert_eq!(press(KeyCode::PageUp, KeyModifiers::NONE), Wish::Move(-10));
    }
}
