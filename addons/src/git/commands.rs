//! Parses the commands and capabilities of a push.

use std::borrow::Cow;

use memchr::memchr;

use crate::contract::{Code, Denial, Verdict};

/// Limit on the refs that one push may update; a push of more refs is denied. It bounds the memory
/// of the list, which is kept until the push is judged. Real pushes update fewer refs.
const MAX_REFS: usize = 10_000;

/// The longest ref name in bytes, four times what forges accept. The limit also keeps each line of
/// the report within a pkt-line.
const MAX_NAME: usize = 1024;

const MAX_SHOWN: usize = 200;

/// One ref update.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Command {
    pub name: Box<[u8]>,
    /// Whether the new id is all zeros.
    pub deletes: bool,
}

impl Command {
    /// Returns the name for messages, cut to [`MAX_SHOWN`] bytes, since a report repeats the
    /// message for every ref.
    pub fn shown(&self) -> Cow<'_, str> {
        match self.name.get(..MAX_SHOWN) {
            Some(beginning) if self.name.len() > MAX_SHOWN => {
                format!("{}…", String::from_utf8_lossy(beginning)).into()
            }
            _ => String::from_utf8_lossy(&self.name),
        }
    }
}

/// The commands of one push, parsed line by line.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Commands {
    pub list: Vec<Command>,
    pub capabilities: Capabilities,
    id_length: Option<usize>,
}

/// The capabilities that the client sent with its first command.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Capabilities {
    /// `report-status` or `report-status-v2`: the client expects a status for each ref.
    pub report: bool,
    /// The longest side-band frame in bytes that the client accepts; `None` without a side band.
    pub side_band: Option<usize>,
    /// Whether the client sends push options.
    pub push_options: bool,
}

impl Commands {
    /// Parses one line, a command or a `shallow` line. Denies a malformed line, a signed push and a
    /// push of too many refs.
    pub fn read(&mut self, line: &[u8]) -> Verdict {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        if let Some(id) = line.strip_prefix(b"shallow ") {
            return self.check_id(id);
        }
        let (command, capabilities) = match memchr(0, line) {
            Some(at) => {
                let (command, rest) = line.split_at(at);
                (command, rest.get(1..))
            }
            None => (line, None),
        };
        if command == b"push-cert" {
            return Err(refused("a signed push", "push without --signed"));
        }
        if let Some(capabilities) = capabilities {
            // Some servers also read capabilities on later commands, and others ignore them. The
            // proxy cannot know how the server would read such a push, so it denies the push.
            if !self.list.is_empty() || memchr(0, capabilities).is_some() {
                return Err(Denial::malformed(
                    "capabilities are only allowed on the first command",
                ));
            }
            self.capabilities = Capabilities::read(capabilities);
        }
        self.command(command)
    }

    fn command(&mut self, command: &[u8]) -> Verdict {
        let mut parts = command.splitn(3, |byte| *byte == b' ');
        let (Some(old), Some(new), Some(name)) = (parts.next(), parts.next(), parts.next()) else {
            return Err(Denial::malformed("a push command must be OLD NEW REF"));
        };
        self.check_id(old)?;
        self.check_id(new)?;
        if name.len() > MAX_NAME {
            return Err(Denial::malformed("a ref name is longer than 1 KiB"));
        }
        if self.list.len() == MAX_REFS {
            let sentence = format!("Push of more than {MAX_REFS} refs: push them in parts");
            return Err(Denial::new(Code::BodyTooLargeToInspect, sentence));
        }
        self.list.push(Command {
            name: name.into(),
            deletes: new.iter().all(|digit| *digit == b'0'),
        });
        Ok(())
    }

    /// Checks that an object id has 40 or 64 hex digits, and the same length as the first id of the
    /// push. With mixed lengths, a server could split id and name at another byte than the proxy.
    fn check_id(&mut self, id: &[u8]) -> Verdict {
        let length = *self.id_length.get_or_insert(id.len());
        let fits = matches!(length, 40 | 64) && id.len() == length;
        if fits && id.iter().all(u8::is_ascii_hexdigit) {
            return Ok(());
        }
        Err(Denial::malformed(
            "the object ids of a push must all have 40 hex digits, or all 64",
        ))
    }

    /// Refuses push options, which request more of the server than ref updates.
    pub fn refuse_options(&self) -> Verdict {
        if self.capabilities.push_options {
            return Err(refused("push options", "push without --push-option"));
        }
        Ok(())
    }
}

impl Capabilities {
    fn read(text: &[u8]) -> Self {
        let mut read = Self::default();
        for capability in text.split(|byte| *byte == b' ') {
            match capability {
                b"report-status" | b"report-status-v2" => read.report = true,
                b"side-band-64k" => read.side_band = Some(65_520),
                b"side-band" => read.side_band = read.side_band.or(Some(1000)),
                b"push-options" => read.push_options = true,
                _ => {}
            }
        }
        read
    }
}

fn refused(what: &str, instead: &str) -> Denial {
    Denial::new(Code::WriteNotAllowed, format!("Write not allowed: {what}"))
        .with("allowed", instead)
        .rule("push commands")
}

#[cfg(test)]
mod tests {
    use testkit::each_row;

    use super::*;

    const ID: &str = "0123456789abcdef0123456789ABCDEF01234567";
    const ZERO: &str = "0000000000000000000000000000000000000000";

    fn read(lines: &[String]) -> Result<Commands, Code> {
        let mut commands = Commands::default();
        for line in lines {
            commands
                .read(line.as_bytes())
                .map_err(|denial| denial.code())?;
        }
        Ok(commands)
    }

    #[test]
    fn commands_shallow_lines_and_capabilities_are_read() {
        let commands = read(&[
            format!("shallow {ID}\n"),
            format!(
                "{ZERO} {ID} refs/heads/a\0 report-status-v2 side-band-64k atomic object-format=sha1 agent=git/2\n"
            ),
            format!("{ID} {ZERO} refs/heads/b"),
        ])
        .unwrap();
        let seen: Vec<_> = commands
            .list
            .iter()
            .map(|command| (command.shown().into_owned(), command.deletes))
            .collect();
        let expected = [("refs/heads/a", false), ("refs/heads/b", true)];
        assert_eq!(seen, expected.map(|(name, d)| (name.to_owned(), d)));
        let capabilities = Capabilities {
            report: true,
            side_band: Some(65_520),
            push_options: false,
        };
        assert_eq!(commands.capabilities, capabilities);
    }

    #[test]
    fn sha256_ids_are_read() {
        let (id, zero) = ("ab".repeat(32), "0".repeat(64));
        let commands = read(&[format!("{id} {zero} refs/heads/a\n")]).unwrap();
        assert!(commands.list[0].deletes);
    }

    #[test]
    fn malformed_commands_are_denied() {
        each_row(
            [
                vec!["hello".to_owned()],
                vec![String::new()],
                vec![format!("{ID} {ID}")],
                vec![format!("{ID} {ID} refs/heads/{}", "a".repeat(MAX_NAME))],
                vec![format!("{ID}  {ID} refs/heads/a")],
                vec![format!("{ID} {}g refs/heads/a", &ID[1..])],
                vec![format!("{} {} refs/heads/a", &ID[1..], &ID[1..])],
                vec![format!("{ID} {ID}{} refs/heads/a", &ID[..24])],
                vec![format!("shallow {ID}\0x")],
                vec![format!("{ID} {ID} refs/heads/a\0 a\0b")],
                vec![
                    format!("{ID} {ID} refs/heads/a\0 atomic"),
                    format!("{ID} {ID} refs/heads/b\0 push-options"),
                ],
            ],
            |lines| {
                assert_eq!(read(&lines), Err(Code::MalformedRequest), "{lines:?}");
            },
        );
    }

    #[test]
    fn signed_pushes_and_push_options_are_refused() {
        let certificate = read(&["push-cert\0 report-status\n".to_owned()]);
        assert_eq!(certificate, Err(Code::WriteNotAllowed));
        let commands = read(&[format!("{ID} {ID} refs/heads/a\0push-options")]).unwrap();
        let denial = commands.refuse_options().unwrap_err();
        assert_eq!(denial.code(), Code::WriteNotAllowed);
    }

    #[test]
    fn a_push_of_more_than_ten_thousand_refs_is_denied() {
        let lines: Vec<_> = (0..=MAX_REFS)
            .map(|n| format!("{ZERO} {ID} refs/tags/{n}"))
            .collect();
        assert!(read(&lines[1..]).is_ok());
        assert_eq!(read(&lines), Err(Code::BodyTooLargeToInspect));
    }
}
