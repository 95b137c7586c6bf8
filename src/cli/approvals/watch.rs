//! `approvals --watch`: shows questions as they are asked and, on a terminal, asks for the answers.

use std::collections::HashSet;
use std::fmt::Display;
use std::io::{self, BufRead, IsTerminal, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use rustix::termios::{QueueSelector, tcflush};
use tokio::sync::mpsc;

use super::exec::Exec;
use super::explained::explained;
use super::feed::{self, Update};
use super::{decided, json, now, show};
use crate::admin::{Approval, ApproveBody, DenyBody};
use crate::cli::Target;
use crate::cli::client::Client;
use crate::cli::exit::{Failure, printable, unwritten};

/// The state of a question that waits for a decision.
const PENDING: &str = "pending";
/// Ids of questions that are over and still remembered.
const MAX_OVER: usize = 10_000;
/// Rings the terminal's bell.
const BELL: &str = "\x07";

/// Shows questions until the user quits. Fails when a server that the user named ends.
pub(super) async fn run(target: Target, json: bool, exec: Option<String>) -> Result<(), Failure> {
    let is_terminal = io::stdin().is_terminal() && io::stdout().is_terminal();
    let asks = is_terminal && !json;
    let lines = match asks {
        true => keyboard(),
        // Never closed, so that the watch does not end with the standard input.
        false => mpsc::channel(1),
    };
    let watch = Watch::new(io::stdout(), json, asks, exec.map(Exec::new));
    let (_typing, lines) = lines;
    watch.run(feed::follow(target), lines).await
}

/// A line that the user typed, and when it was read.
type Typed = (Instant, String);

/// Lines that the user types. The sender is kept by the thread that reads them.
fn keyboard() -> (mpsc::Sender<Typed>, mpsc::Receiver<Typed>) {
    let (sender, lines) = mpsc::channel(1);
    let typed = sender.clone();
    std::thread::spawn(move || {
        for line in io::stdin().lock().lines() {
            let Ok(line) = line else { break };
            if typed.blocking_send((Instant::now(), line)).is_err() {
                return;
            }
        }
        let _ = typed.blocking_send((Instant::now(), Answer::QUIT.to_owned()));
    });
    (sender, lines)
}

/// Identifies a question: the socket of its server, and its id. Another server may claim the same
/// id.
type Key = (PathBuf, String);

fn key(client: &Client, question: &Approval) -> Key {
    (client.socket().to_owned(), question.id.clone())
}

/// An open question of a server.
struct Open {
    client: Arc<Client>,
    question: Approval,
    is_skipped: bool,
    /// Whether the user has seen the whole arguments.
    is_whole: bool,
}

impl Open {
    fn key(&self) -> Key {
        key(&self.client, &self.question)
    }
}

struct Watch<W> {
    output: W,
    /// In the order in which they were asked.
    open: Vec<Open>,
    /// Questions that are over. A server may still announce one of them: it announces a question
    /// that it has listed, too.
    over: HashSet<Key>,
    /// The question that the user is asked now.
    shown: Option<Key>,
    /// When it was shown.
    shown_at: Instant,
    json: bool,
    asks: bool,
    exec: Option<Exec>,
}

/// The user's answer to a question.
#[derive(Debug, PartialEq, Eq)]
enum Answer {
    Approve,
    ForLease,
    Deny(Option<String>),
    Explain,
    Skip,
    Quit,
}

/// Said instead of an approval of something that was cut.
const NOT_WHOLE: &str = "the arguments are not shown whole: e shows all of them";

/// Names the container and the subject, however long the text above, and asks for the answer.
fn prompt(question: &Approval) -> String {
    let texts = [&question.container_id, &question.kind, &question.subject];
    let [container, kind, subject] = texts.map(|text| show::shortened(&printable(text), 100));
    let lease = match question.kind.as_str() {
        "tool" => "every call of the tool",
        _ => "approve",
    };
    format!(
        "{container} asks for {kind} {subject}\n\
         y approve  n [WORDS] deny  l {lease} until the lease ends  e explain  s skip  q quit > "
    )
}

impl Answer {
    const QUIT: &'static str = "q";

    fn parse(line: &str) -> Option<Self> {
        let line = line.trim();
        Some(match line {
            "y" => Self::Approve,
            "l" => Self::ForLease,
            "n" => Self::Deny(None),
            "e" => Self::Explain,
            "s" => Self::Skip,
            Self::QUIT => Self::Quit,
            _ => Self::Deny(Some(line.strip_prefix("n ")?.trim().to_owned())),
        })
    }
}

impl<W: Write> Watch<W> {
    fn new(output: W, json: bool, asks: bool, exec: Option<Exec>) -> Self {
        Self {
            output,
            open: Vec::new(),
            over: HashSet::new(),
            shown: None,
            shown_at: Instant::now(),
            json,
            asks,
            exec,
        }
    }

    async fn run(
        mut self,
        mut updates: mpsc::Receiver<Update>,
        mut lines: mpsc::Receiver<Typed>,
    ) -> Result<(), Failure> {
        loop {
            self.ask_next()?;
            tokio::select! {
                update = updates.recv() => match update {
                    Some(Update::Failed(failure)) => return Err(failure),
                    Some(update) => self.apply(update)?,
                    None => return Ok(()),
                },
                typed = lines.recv() => {
                    let Some((at, line)) = typed else { return Ok(()) };
                    match Answer::parse(&line) {
                        Some(Answer::Quit) => return Ok(()),
                        // What was typed before the question was shown is no answer to it.
                        _ if at < self.shown_at => {}
                        answer => self.answer(answer).await?,
                    }
                }
            }
        }
    }

    fn apply(&mut self, update: Update) -> Result<(), Failure> {
        match update {
            Update::Changed(client, question) => self.changed(client, *question),
            Update::Listed(client, questions) => {
                let is_listed = |id: &str| questions.iter().any(|listed| listed.id == id);
                self.drop_open(|open| {
                    open.client.socket() == client.socket() && !is_listed(&open.question.id)
                })?;
                let mut questions = questions.into_iter();
                questions.try_for_each(|question| self.changed(Arc::clone(&client), question))
            }
            Update::Gone(client) => self.drop_open(|open| open.client.socket() == client.socket()),
            Update::Failed(failure) => Err(failure),
        }
    }

    /// Forgets questions that are no longer open.
    fn drop_open(&mut self, is_over: impl Fn(&Open) -> bool) -> Result<(), Failure> {
        let over = self.open.extract_if(.., |open| is_over(open));
        for open in over.collect::<Vec<_>>() {
            let (key, question) = (open.key(), open.question);
            self.end(&key, &question, "is no longer open")?;
        }
        Ok(())
    }

    fn changed(&mut self, client: Arc<Client>, question: Approval) -> Result<(), Failure> {
        let key = key(&client, &question);
        let known = self.open.iter_mut().find(|open| open.key() == key);
        let is_pending = question.state == PENDING;
        match known {
            // Asked again. What is asked never changes.
            Some(open) if is_pending => {
                open.question.attempts = question.attempts;
                open.question.waiting = question.waiting;
            }
            Some(_) => {
                if self.json {
                    self.say(json(&question)?)?;
                }
                self.close(&key);
                let by = question.decided_by.as_deref().map(|by| format!(" by {by}"));
                let what = format!("{}{}", question.state, by.unwrap_or_default());
                self.end(&key, &question, &what)?;
            }
            None if is_pending && !self.over.contains(&key) => {
                self.begin(&question)?;
                self.open.push(Open {
                    client,
                    question,
                    is_skipped: false,
                    is_whole: false,
                });
            }
            None => {}
        }
        Ok(())
    }

    /// Takes a question away.
    fn close(&mut self, key: &Key) {
        self.open.retain(|open| open.key() != *key);
        if self.over.len() >= MAX_OVER {
            self.over.clear();
        }
        self.over.insert(key.clone());
    }

    /// Announces a new question.
    fn begin(&mut self, question: &Approval) -> Result<(), Failure> {
        if let Some(exec) = &self.exec {
            exec.start(question);
        }
        match (self.json, self.asks) {
            (true, _) => self.say(json(question)?),
            (false, true) => self.write(BELL),
            (false, false) => self.say(format_args!("{}\n", show::details(question, now()))),
        }
    }

    /// Announces the end of a question that the user was shown.
    fn end(&mut self, key: &Key, question: &Approval, what: &str) -> Result<(), Failure> {
        let was_shown = self.shown.as_ref() == Some(key);
        if was_shown {
            self.shown = None;
        }
        match (self.json, self.asks, was_shown) {
            (false, true, true) => {
                self.say(format_args!("\n{} {}", subject(question), printable(what)))
            }
            (false, false, _) => {
                self.say(format_args!("{} {}", subject(question), printable(what)))
            }
            _ => Ok(()),
        }
    }

    /// Shows the oldest question that the user has not skipped, if none is shown.
    fn ask_next(&mut self) -> Result<(), Failure> {
        if !self.asks || self.shown.is_some() {
            return Ok(());
        }
        let mut waiting = self.open.iter_mut().filter(|open| !open.is_skipped);
        let Some(open) = waiting.next() else {
            return Ok(());
        };
        let (details, is_whole) = show::brief(&open.question, now());
        open.is_whole |= is_whole;
        let is_whole = open.is_whole;
        let (shown, prompt) = (open.key(), prompt(&open.question));
        let more = waiting.count();
        let mut text = format!("\n{details}");
        let socket = &*shown.0;
        if self
            .open
            .iter()
            .any(|other| other.client.socket() != socket)
        {
            text.push_str(&format!(
                "\nserver     {}",
                printable(&socket.display().to_string())
            ));
        }
        if more > 0 {
            text.push_str(&format!("\n({more} more)"));
        }
        if !is_whole {
            text.push_str(&format!("\n({NOT_WHOLE})"));
        }
        self.shown = Some(shown);
        self.say(text)?;
        // Fails if the standard input is no terminal.
        let _ = tcflush(io::stdin(), QueueSelector::IFlush);
        self.shown_at = Instant::now();
        self.write(&prompt)
    }

    async fn answer(&mut self, answer: Option<Answer>) -> Result<(), Failure> {
        let shown = self
            .open
            .iter_mut()
            .find(|open| self.shown.as_ref() == Some(&open.key()));
        let Some(open) = shown else {
            return Ok(());
        };
        let (key, client) = (open.key(), Arc::clone(&open.client));
        let id = &key.1;
        let prompt = prompt(&open.question);
        let approves = matches!(answer, Some(Answer::Approve | Answer::ForLease));
        if approves && !open.is_whole {
            self.say(NOT_WHOLE)?;
            return self.write(&prompt);
        }
        let scope = |name: &str| ApproveBody {
            scope: Some(name.to_owned()),
            ..ApproveBody::default()
        };
        let done = match answer {
            Some(Answer::Approve) => client.approve(id, &ApproveBody::default()).await,
            Some(Answer::ForLease) => client.approve(id, &scope("lease")).await,
            Some(Answer::Deny(comment)) => client.deny(id, &DenyBody { comment }).await,
            Some(Answer::Explain) => {
                let mut text = explained(&client, &open.question, now()).await;
                if !open.is_whole {
                    open.is_whole = true;
                    text = format!("{}\n\n{text}", show::details(&open.question, now()));
                }
                self.say(format_args!("\n{text}\n"))?;
                return self.write(&prompt);
            }
            Some(Answer::Skip) => {
                open.is_skipped = true;
                self.shown = None;
                return Ok(());
            }
            Some(Answer::Quit) | None => return self.write(&prompt),
        };
        self.shown = None;
        match done {
            Ok(question) => {
                self.close(&key);
                self.say(decided(&question))
            }
            Err(failure) => {
                self.say(printable(failure.message()))?;
                // For example, another operator was faster.
                let now = client.approval(id).await;
                if now.is_ok_and(|question| question.state != PENDING) {
                    self.close(&key);
                }
                Ok(())
            }
        }
    }

    /// Writes a line.
    fn say(&mut self, line: impl Display) -> Result<(), Failure> {
        writeln!(self.output, "{line}").map_err(unwritten)
    }

    /// Writes a text without a line feed, which a terminal does not wait for.
    fn write(&mut self, text: &str) -> Result<(), Failure> {
        let written = self.output.write_all(text.as_bytes());
        written
            .and_then(|()| self.output.flush())
            .map_err(unwritten)
    }
}

fn subject(question: &Approval) -> String {
    printable(&question.subject)
}

#[cfg(test)]
mod tests;
