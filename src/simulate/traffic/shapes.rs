//! Generators of traffic, by the shapes that deployments see.

use super::talk::Talk;
use super::{Session, Traffic};
use crate::clock::SECOND;
use crate::simulate::Dice;

/// The shapes. Rates are for 8 replicas of the default speed, some two thirds of what they can do when half of the
/// prompts comes from the caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, clap::ValueEnum)]
pub enum Shape {
    /// Lone questions behind a few long system prompts, some much more common than others.
    SharedPrefix,
    /// Chats of several turns behind one short system prompt.
    MultiTurn,
    /// Agents: many quick turns, tool results of hundreds of tokens, long tool lists in front.
    Agents,
    /// Long documents, each asked many times.
    LongDocuments,
    /// Chats, and every 20 seconds 64 requests at once with one new prompt of 8,192 tokens.
    Bursts,
    /// Chats, and after a third of the time everybody asks about one new thing.
    FlashCrowd,
    /// Chats with one of 24 LoRA adapters, each with a system prompt of its own.
    Lora,
    /// Prompts that have nothing in common.
    Unique,
    /// One prefix that everybody wants.
    HotPrefix,
}

impl Shape {
    /// All of them.
    pub const ALL: [Shape; 9] = [
        Shape::SharedPrefix,
        Shape::MultiTurn,
        Shape::Agents,
        Shape::LongDocuments,
        Shape::Bursts,
        Shape::FlashCrowd,
        Shape::Lora,
        Shape::Unique,
        Shape::HotPrefix,
    ];

    /// The name on the command line.
    pub fn label(self) -> &'static str {
        match self {
            Shape::SharedPrefix => "shared-prefix",
            Shape::MultiTurn => "multi-turn",
            Shape::Agents => "agents",
            Shape::LongDocuments => "long-documents",
            Shape::Bursts => "bursts",
            Shape::FlashCrowd => "flash-crowd",
            Shape::Lora => "lora",
            Shape::Unique => "unique",
            Shape::HotPrefix => "hot-prefix",
        }
    }

    fn about(self) -> &'static str {
        match self {
            Shape::SharedPrefix => "lone questions behind 24 system prompts of 1,000 to 6,000 tokens",
            Shape::MultiTurn => "chats of 3 to 10 turns behind one system prompt of 800 tokens",
            Shape::Agents => "agents of 8 to 24 turns, tool results of 100 to 1,500 tokens, tool lists of 4,000",
            Shape::LongDocuments => "40 documents of 8,000 to 32,000 tokens, asked again and again",
            Shape::Bursts => "chats, and every 20 s 64 equal prompts of 8,192 tokens at once",
            Shape::FlashCrowd => {
                "chats; then for a sixth of the time everybody asks about one new text of 6,000 tokens"
            }
            Shape::Lora => "chats of 1 to 6 turns with 24 adapters, a system prompt of 1,500 tokens each",
            Shape::Unique => "prompts of 200 to 8,000 tokens with nothing in common",
            Shape::HotPrefix => "one prefix of 6,000 tokens, lone questions behind it",
        }
    }

    /// One burst of [`Shape::Bursts`], alone.
    pub fn burst(block_size: u32, seed: u64) -> Traffic {
        let (name, about) = ("burst".into(), "64 equal cold prompts of 8,192 tokens at once".into());
        Traffic { name, about, sessions: burst_of(block_size, seed, 0).collect(), block_size }
    }

    /// Traffic of this shape for so many seconds, `load` times as much as usual.
    pub fn traffic(self, seconds: f64, load: f64, block_size: u32, seed: u64) -> Traffic {
        let mut make = Maker { dice: Dice::new(seed, self as u64), block_size, seconds, load, sessions: Vec::new() };
        match self {
            Shape::SharedPrefix => make.shared_prefix(),
            Shape::MultiTurn => make.chats(1.0, 0.0, seconds, &[None], 800),
            Shape::Agents => make.agents(),
            Shape::LongDocuments => make.long_documents(),
            Shape::Bursts => make.bursts(),
            Shape::FlashCrowd => make.flash_crowd(),
            Shape::Lora => make.lora(),
            Shape::Unique => make.unique(),
            Shape::HotPrefix => make.hot_prefix(),
        }
        Traffic { name: self.label().into(), about: self.about().into(), sessions: make.sessions, block_size }
    }
}

/// 64 equal prompts at once.
fn burst_of(block_size: u32, seed: u64, start: u64) -> impl Iterator<Item = Session> {
    let text = Talk::new(block_size, None).opened(seed).shared(seed, 8192);
    (0..64).map(move |n| {
        let mut talk = text.clone();
        talk.turn(&mut Dice::new(seed, 900 + n), 0, 0, 100);
        talk.session(start)
    })
}

struct Maker {
    dice: Dice,
    block_size: u32,
    seconds: f64,
    load: f64,
    sessions: Vec<Session>,
}

fn ns(seconds: f64) -> u64 {
    (seconds * SECOND as f64) as u64
}

impl Maker {
    /// Times by chance, `rate` a second on average, from one second to another.
    fn times(&mut self, rate: f64, from: f64, until: f64) -> Vec<u64> {
        let (mut times, mut at) = (Vec::new(), from);
        loop {
            at += self.dice.waiting(1.0 / (rate * self.load));
            if at >= until {
                return times;
            }
            times.push(ns(at));
        }
    }

    fn shared_prefix(&mut self) {
        let prompts: Vec<(u64, usize)> = (0..24).map(|n| (1000 + n, self.dice.between(1000, 6000))).collect();
        for start in self.times(26.0, 0.0, self.seconds) {
            let (seed, tokens) = prompts[self.dice.popular(prompts.len())];
            let mut talk = Talk::new(self.block_size, None).shared(seed, tokens);
            let (question, output) = (self.dice.between(50, 600), self.dice.between(50, 300));
            talk.turn(&mut self.dice, 0, question, output);
            self.sessions.push(talk.session(start));
        }
    }

    fn chats(&mut self, rate: f64, from: f64, until: f64, adapters: &[Option<&str>], system: usize) {
        let most = if adapters.len() > 1 { 6 } else { 10 };
        for start in self.times(4.2 * rate, from, until) {
            let adapter = self.dice.popular(adapters.len());
            let mut talk = Talk::new(self.block_size, adapters[adapter]).shared(2000 + adapter as u64, system);
            for turn in 0..self.dice.between(if most == 6 { 1 } else { 3 }, most) {
                let after = if turn == 0 { 0.0 } else { 2.0 + self.dice.waiting(8.0) };
                let tokens = match self.dice.below(5) {
                    0 => self.dice.between(400, 2500),
                    _ => self.dice.between(20, 400),
                };
                let output = self.dice.between(50, 500);
                talk.turn(&mut self.dice, ns(after), tokens, output);
            }
            self.sessions.push(talk.session(start));
        }
    }

    fn agents(&mut self) {
        for start in self.times(1.5, 0.0, self.seconds) {
            let kind = self.dice.popular(6) as u64;
            let mut talk = Talk::new(self.block_size, None).shared(3000 + kind, 4000);
            for turn in 0..self.dice.between(8, 24) {
                let after = if turn == 0 { 0.0 } else { 0.2 + self.dice.waiting(1.5) };
                let tokens = if turn == 0 { self.dice.between(100, 2000) } else { self.dice.between(100, 1500) };
                let output = self.dice.between(30, 200);
                talk.turn(&mut self.dice, ns(after), tokens, output);
            }
            self.sessions.push(talk.session(start));
        }
    }

    fn long_documents(&mut self) {
        let documents: Vec<(u64, usize)> = (0..40).map(|n| (4000 + n, self.dice.between(8000, 32_000))).collect();
        for start in self.times(9.0, 0.0, self.seconds) {
            let (seed, tokens) = documents[self.dice.popular(documents.len())];
            // The document is what the user's message begins with.
            let mut talk = Talk::new(self.block_size, None).shared(seed, tokens).opened(seed);
            let (question, output) = (self.dice.between(20, 100), self.dice.between(50, 400));
            talk.turn(&mut self.dice, 0, question, output);
            self.sessions.push(talk.session(start));
        }
    }

    fn bursts(&mut self) {
        self.chats(0.7, 0.0, self.seconds, &[None], 800);
        // The first comes early, so that short runs have one, too.
        let bursts = (self.seconds / 20.0).ceil() as u64;
        for burst in 0..bursts {
            let seed = self.dice.draw();
            self.sessions.extend(burst_of(self.block_size, seed, ns(burst as f64 * 20.0 + 5.0)));
        }
    }

    fn flash_crowd(&mut self) {
        self.chats(0.8, 0.0, self.seconds, &[None], 800);
        let seed = self.dice.draw();
        let (from, until) = (self.seconds / 3.0, self.seconds / 2.0);
        for start in self.times(30.0, from, until) {
            let mut talk = Talk::new(self.block_size, None).shared(2000, 800).shared(seed, 6000).opened(seed);
            let (question, output) = (self.dice.between(10, 60), self.dice.between(50, 250));
            talk.turn(&mut self.dice, 0, question, output);
            self.sessions.push(talk.session(start));
        }
    }

    fn lora(&mut self) {
        let names: Vec<String> = (0..24).map(|n| format!("adapter-{n}")).collect();
        let adapters: Vec<Option<&str>> = names.iter().map(|name| Some(name.as_str())).collect();
        self.chats(1.6, 0.0, self.seconds, &adapters, 1500);
    }

    fn unique(&mut self) {
        for start in self.times(24.0, 0.0, self.seconds) {
            let mut talk = Talk::new(self.block_size, None);
            let tokens = (200.0 * (self.dice.share() * 40f64.ln()).exp()) as usize;
            let output = self.dice.between(50, 400);
            talk.turn(&mut self.dice, 0, tokens, output);
            self.sessions.push(talk.session(start));
        }
    }

    fn hot_prefix(&mut self) {
        for start in self.times(40.0, 0.0, self.seconds) {
            let mut talk = Talk::new(self.block_size, None).shared(5000, 6000);
            let (question, output) = (self.dice.between(50, 600), self.dice.between(50, 300));
            talk.turn(&mut self.dice, 0, question, output);
            self.sessions.push(talk.session(start));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_traffic() {
        for shape in Shape::ALL {
            let (a, b, c) =
                (shape.traffic(30.0, 1.0, 16, 1), shape.traffic(30.0, 1.0, 16, 1), shape.traffic(30.0, 1.0, 16, 2));
            let all = |t: &Traffic| {
                t.sessions.iter().map(|s| (s.start, s.turns.clone(), s.chain.clone())).collect::<Vec<_>>()
            };
            assert!(all(&a) == all(&b) && all(&a) != all(&c), "{}", a.name);
            for session in &a.sessions {
                let last = session.turns.last().unwrap();
                assert_eq!(session.chain.len(), (last.prompt + last.output) / 16, "{}", a.name);
            }
        }
    }

    #[test]
    fn those_who_share_a_prefix_share_its_blocks() {
        let traffic = Shape::HotPrefix.traffic(2.0, 1.0, 16, 1);
        let [a, b, ..] = &traffic.sessions[..] else { panic!() };
        assert_eq!(a.chain[..375], b.chain[..375]);
        assert_ne!(a.chain[375], b.chain[375]);
    }
}
