//! A queue of evaluations in which containers take turns.

use std::collections::{HashMap, VecDeque};

use addons::contract::{ContainerId, EvaluatorError};

/// Limit on the evaluations of a container that wait or run; further ones fail with
/// [`EvaluatorError::Busy`].
pub const MAX_OF_CONTAINER: usize = 64;
/// Limit on the total size of the inputs of a container's evaluations, in bytes.
pub const MAX_BYTES_OF_CONTAINER: usize = 16 << 20;
/// Limit on the evaluations of all containers that wait or run.
pub const MAX_JOBS: usize = 1024;
/// Limit on the total size of their inputs, in bytes. Parsed, an input takes about ten times as much.
pub const MAX_BYTES: usize = 64 << 20;

/// The evaluations that wait or run, as jobs of type `J`.
pub struct Turns<J> {
    /// The containers that have waiting jobs, and fewer than `at_once` that run, in the order of
    /// their turns.
    order: VecDeque<ContainerId>,
    pub(super) lanes: HashMap<ContainerId, Lane<J>>,
    pub(super) load: Load,
    /// Limit on the jobs of one container that run at once.
    at_once: usize,
}

/// The jobs of one container.
pub(super) struct Lane<J> {
    waiting: VecDeque<(J, usize)>,
    running: usize,
    /// Of the jobs that wait, and of those that run.
    load: Load,
}

/// A number of jobs, and the total size of their inputs.
#[derive(Clone, Copy, Default)]
pub(super) struct Load {
    pub(super) jobs: usize,
    pub(super) bytes: usize,
}

impl Load {
    fn with(self, bytes: usize) -> Self {
        Self {
            jobs: self.jobs.saturating_add(1),
            bytes: self.bytes.saturating_add(bytes),
        }
    }

    fn without(self, bytes: usize) -> Self {
        Self {
            jobs: self.jobs.saturating_sub(1),
            bytes: self.bytes.saturating_sub(bytes),
        }
    }

    fn is_within(self, jobs: usize, bytes: usize) -> bool {
        self.jobs <= jobs && self.bytes <= bytes
    }
}

impl<J> Turns<J> {
    /// An empty queue. At most `at_once` jobs of a container run at once.
    pub fn new(at_once: usize) -> Self {
        Self {
            order: VecDeque::new(),
            lanes: HashMap::new(),
            load: Load::default(),
            at_once,
        }
    }

    /// Adds a job whose input has `bytes` bytes. Fails with [`EvaluatorError::Busy`] at a limit.
    pub fn push(
        &mut self,
        container: &ContainerId,
        job: J,
        bytes: usize,
    ) -> Result<(), EvaluatorError> {
        let all = self.load.with(bytes);
        let own = self.lanes.get(container).map(|lane| lane.load);
        let own = own.unwrap_or_default().with(bytes);
        let fits = own.is_within(MAX_OF_CONTAINER, MAX_BYTES_OF_CONTAINER);
        // The last quarter is for containers that have none yet.
        let quarters = if own.jobs == 1 { 4 } else { 3 };
        if !fits || !all.is_within(MAX_JOBS / 4 * quarters, MAX_BYTES / 4 * quarters) {
            return Err(EvaluatorError::Busy);
        }
        let lane = self.lanes.entry(container.clone()).or_insert_with(|| Lane {
            waiting: VecDeque::new(),
            running: 0,
            load: Load::default(),
        });
        if lane.waiting.is_empty() && lane.running < self.at_once {
            self.order.push_back(container.clone());
        }
        lane.waiting.push_back((job, bytes));
        (lane.load, self.load) = (own, all);
        Ok(())
    }

    /// Takes the next job, of the container whose turn it is, and the size of its input. The job
    /// runs until [`Turns::end`]. With `is_first`, only containers of which no job runs have a turn.
    pub fn begin(&mut self, is_first: bool) -> Option<(ContainerId, J, usize)> {
        let runs = |container| {
            self.lanes
                .get(container)
                .is_some_and(|lane| lane.running > 0)
        };
        let mut order = self.order.iter();
        let next = order.position(|container| !is_first || !runs(container))?;
        let container = self.order.remove(next)?;
        let lane = self.lanes.get_mut(&container)?;
        let (job, bytes) = lane.waiting.pop_front()?;
        lane.running = lane.running.saturating_add(1);
        if !lane.waiting.is_empty() && lane.running < self.at_once {
            self.order.push_back(container.clone());
        }
        Some((container, job, bytes))
    }

    /// Removes the waiting jobs of a container of which `is_wanted` is false.
    pub fn retain(&mut self, container: &ContainerId, is_wanted: impl Fn(&J) -> bool) {
        let Some(lane) = self.lanes.get_mut(container) else {
            return;
        };
        let had_waiting = !lane.waiting.is_empty();
        lane.waiting.retain(|(job, bytes)| {
            let stays = is_wanted(job);
            if !stays {
                lane.load = lane.load.without(*bytes);
                self.load = self.load.without(*bytes);
            }
            stays
        });
        if had_waiting && lane.waiting.is_empty() {
            self.order.retain(|one| one != container);
        }
        if lane.load.jobs == 0 {
            self.lanes.remove(container);
        }
    }

    /// Removes a job that has ended, whose input had `bytes` bytes.
    pub fn end(&mut self, container: &ContainerId, bytes: usize) {
        self.load = self.load.without(bytes);
        let Some(lane) = self.lanes.get_mut(container) else {
            return;
        };
        lane.load = lane.load.without(bytes);
        let was_full = lane.running >= self.at_once;
        lane.running = lane.running.saturating_sub(1);
        if lane.load.jobs == 0 {
            self.lanes.remove(container);
        } else if was_full && !lane.waiting.is_empty() {
            self.order.push_back(container.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn container(name: &str) -> ContainerId {
        ContainerId::parse(name).unwrap()
    }

    fn begun(turns: &mut Turns<u8>) -> Vec<(String, u8)> {
        let jobs = std::iter::from_fn(|| turns.begin(false));
        jobs.map(|(of, job, _)| (of.as_str().to_owned(), job))
            .collect()
    }

    #[test]
    fn containers_take_turns_and_each_has_a_limit_of_running_jobs() {
        let mut turns = Turns::new(2);
        let (a, b) = (container("a"), container("b"));
        for job in 1..=4 {
            turns.push(&a, job, 1).unwrap();
        }
        turns.push(&b, 5, 1).unwrap();
        let named = |jobs: &[(&str, u8)]| -> Vec<(String, u8)> {
            jobs.iter()
                .map(|(of, job)| ((*of).to_owned(), *job))
                .collect()
        };
        assert_eq!(begun(&mut turns), named(&[("a", 1), ("b", 5), ("a", 2)]));
        turns.end(&a, 1);
        turns.end(&b, 1);
        assert_eq!(begun(&mut turns), named(&[("a", 3)]));
        turns.end(&a, 1);
        turns.end(&a, 1);
        assert_eq!(begun(&mut turns), named(&[("a", 4)]));
        turns.end(&a, 1);
        assert!(turns.lanes.is_empty() && turns.order.is_empty());
        assert_eq!((turns.load.jobs, turns.load.bytes), (0, 0));
    }
}
