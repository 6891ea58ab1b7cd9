//! What one user and the assistant say.

use serde_json::{Value, json};

use super::Options;
use super::client::Answer;
use crate::mock::words::{Dice, text};

/// A conversation between two turns.
#[derive(Debug)]
pub struct Conversation {
    model: String,
    messages: Vec<Value>,
    turns_left: usize,
    dice: Dice,
    question_words: usize,
    max_tokens: u64,
    stream: bool,
    /// The replica of the turn before, as far as known.
    pub previous_replica: Option<String>,
    /// The replica of the last turn.
    pub replica: Option<String>,
}

impl Conversation {
    /// The conversation of this number: the same options give the same words.
    pub fn new(options: &Options, number: usize) -> Conversation {
        let system = number % options.system_prompts.max(1);
        let mut messages = Vec::new();
        if options.system_words > 0 {
            let mut dice = Dice(options.seed.wrapping_mul(1_000_003).wrapping_add(system as u64));
            messages.push(json!({"role": "system", "content": text(&mut dice, options.system_words)}));
        }
        Conversation {
            model: options.model.clone(),
            messages,
            turns_left: options.turns,
            dice: Dice(Dice(options.seed.wrapping_mul(998_244_353).wrapping_add(number as u64)).roll()),
            question_words: options.question_words,
            max_tokens: options.max_tokens,
            stream: options.stream,
            previous_replica: None,
            replica: None,
        }
    }

    /// Whether all turns are done.
    pub fn is_over(&self) -> bool {
        self.turns_left == 0
    }

    /// The body of the next request.
    pub fn ask(&mut self) -> String {
        self.turns_left = self.turns_left.saturating_sub(1);
        let question = text(&mut self.dice, self.question_words.max(1));
        self.messages.push(json!({"role": "user", "content": question}));
        let mut body = json!({"model": self.model, "messages": self.messages, "max_tokens": self.max_tokens});
        if self.stream {
            body["stream"] = true.into();
            body["stream_options"] = json!({"include_usage": true});
        }
        body.to_string()
    }

    /// Takes the answer into the history; without one the question is forgotten.
    pub fn hear(&mut self, answer: Option<&Answer>) {
        match answer {
            Some(answer) => {
                self.messages.push(json!({"role": "assistant", "content": answer.text}));
                self.previous_replica = self.replica.take();
                self.replica = answer.replica.clone();
            }
            None => drop(self.messages.pop()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> Options {
        Options { conversations: 4, turns: 2, system_prompts: 2, system_words: 20, ..Options::default() }
    }

    fn ask(conversation: &mut Conversation) -> Vec<Value> {
        let body: Value = serde_json::from_str(&conversation.ask()).unwrap();
        body["messages"].as_array().unwrap().clone()
    }

    #[test]
    fn text_follows_from_seed_and_number() {
        let first = |options: &Options, number| ask(&mut Conversation::new(options, number));
        assert_eq!(first(&options(), 1), first(&options(), 1));
        let [a, b, c] = [0, 1, 2].map(|number| first(&options(), number));
        assert_eq!(a[0], c[0], "every second conversation has the same system prompt");
        assert_ne!(a[0], b[0]);
        assert_ne!(a[1], c[1]);
        assert_ne!(a, first(&Options { seed: 2, ..options() }, 0));
        assert_eq!(a[0]["content"].as_str().unwrap().split(' ').count(), 20);
    }

    #[test]
    fn the_history_grows_by_answers_and_forgets_failed_questions() {
        let mut conversation = Conversation::new(&options(), 0);
        let first = ask(&mut conversation);
        conversation.hear(None);
        assert!(!conversation.is_over());
        assert_eq!(ask(&mut conversation).len(), first.len());
        let answer = Answer { text: "yes".into(), replica: Some("a".into()), ..Answer::default() };
        conversation.hear(Some(&answer));
        assert!(conversation.is_over());
        assert_eq!(conversation.messages.last().unwrap(), &json!({"role": "assistant", "content": "yes"}));
    }
}
