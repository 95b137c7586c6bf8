//! Prompts under their exposed names, as a container sees them.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use serde_json::value::RawValue;

use super::super::settings::ServerSettings;
use super::names::{Problem, Problems, exposed_prompt_name, report_collision};
use super::rewrite::with_name;
use crate::json::Members;

/// The prompts of a container, by their exposed names.
#[derive(Debug, Default)]
pub struct ExposedPrompts {
    prompts: Vec<ExposedPrompt>,
    by_name: HashMap<Arc<str>, usize>,
    problems: Vec<Problem>,
}

/// One prompt under its exposed name.
#[derive(Debug)]
pub struct ExposedPrompt {
    /// The name that the container sees.
    pub name: Arc<str>,
    /// The server that lists the prompt.
    pub server: Arc<ServerSettings>,
    /// The server's own name for the prompt.
    pub original: Arc<str>,
    /// The server's entry.
    raw: Arc<RawValue>,
    /// The place of the name in it.
    place: Range<usize>,
}

impl ExposedPrompt {
    /// The entry of `prompts/list`, as JSON text. It is written for each request, as that of a tool.
    pub fn json(&self) -> String {
        with_name(self.raw.get(), &self.place, &self.name)
    }
}

impl ExposedPrompts {
    /// Builds the view of a container. Leaves out entries that cannot be read or have no valid
    /// name. If several prompts have the same exposed name, keeps the first.
    #[must_use]
    pub fn of<'l, L, P>(listings: L) -> Self
    where
        L: IntoIterator<Item = (&'l Arc<ServerSettings>, P)>,
        P: IntoIterator<Item = &'l Arc<RawValue>>,
    {
        let mut exposed = Self::default();
        let mut problems = Problems::default();
        for (server, prompts) in listings {
            for raw in prompts {
                exposed.add(server, raw, &mut problems);
            }
        }
        exposed.problems = problems.into_lines("problems with prompts");
        exposed
    }

    /// The prompts in a stable order.
    pub fn all(&self) -> &[ExposedPrompt] {
        &self.prompts
    }

    /// The prompt with this exposed name.
    pub fn find(&self, name: &str) -> Option<&ExposedPrompt> {
        self.prompts.get(*self.by_name.get(name)?)
    }

    /// Problems with the prompts that servers list, for the log.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    fn add(&mut self, server: &Arc<ServerSettings>, raw: &Arc<RawValue>, problems: &mut Problems) {
        let Ok(members) = Members::read(raw) else {
            return;
        };
        let Some(original) = members.text("name").map(Arc::<str>::from) else {
            return;
        };
        let Some(name) = exposed_prompt_name(server, &original, problems) else {
            return;
        };
        if let Some(owner) = self.by_name.get(&name).and_then(|at| self.prompts.get(*at)) {
            let kept = (&owner.server.name, &*owner.original);
            let left_out = (&server.name, &*original);
            report_collision(problems, &name, kept, left_out);
            return;
        }
        self.by_name.insert(Arc::clone(&name), self.prompts.len());
        self.prompts.push(ExposedPrompt {
            place: members.place("name", raw).unwrap_or_default(),
            raw: Arc::clone(raw),
            server: Arc::clone(server),
            name,
            original,
        });
    }
}
