//! Upper bound on the time of an evaluation, by the size of its input.

use regex::RegexBuilder;
use regorus::Value;

use super::functions::TextTest;
use super::{Call, Computed, Expression, Membership, Operation, Plan, Rule};

/// Time to parse and drop a byte of JSON, in nanoseconds. Nested objects are the worst case:
/// regorus takes about 100 ns per byte of a list of small objects, and several times as much for
/// 120 objects nested in one another.
const PARSE_NS: u64 = 500;
/// Time of an expression, in nanoseconds, without its comparisons and calls.
const STEP_NS: u64 = 60;
/// Time of a call, in nanoseconds, without the function's work on its arguments.
const CALL_NS: u64 = 200;
/// Time to compare or copy a byte, in nanoseconds.
const COMPARE_NS: u64 = 4;
/// Limits on the size of a compiled pattern, in bytes. They are tried in this order.
const PATTERN_BYTES: [usize; 8] = [512, 1024, 2048, 4096, 8192, 16_384, 32_768, 65_536];

/// A linear bound on a time in nanoseconds or a size in bytes: an amount for each byte of the
/// input, and a fixed amount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bound {
    per_byte: u64,
    fixed: u64,
}

impl Bound {
    /// Bounds the time of an evaluation, in nanoseconds. `None` if the plan calls a function whose
    /// time is not linear in its arguments or was not measured.
    pub fn of(plan: &Plan) -> Option<Self> {
        let mut estimate = Estimate {
            plan,
            rules: vec![None; plan.rules.len()],
            computed: vec![None; plan.computed.len()],
            time: Self {
                per_byte: PARSE_NS,
                fixed: 0,
            },
        };
        // The plan contains only rules that the answer depends on.
        for slot in 0..plan.rules.len() {
            estimate.rule(slot)?;
        }
        Some(estimate.time)
    }

    /// The total for an input of `bytes` bytes.
    pub fn total(self, bytes: usize) -> u64 {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        let total = self.per_byte.saturating_mul(bytes);
        total.saturating_add(self.fixed)
    }

    const fn fixed(fixed: u64) -> Self {
        Self { per_byte: 0, fixed }
    }

    fn plus(self, other: Self) -> Self {
        Self {
            per_byte: self.per_byte.saturating_add(other.per_byte),
            fixed: self.fixed.saturating_add(other.fixed),
        }
    }

    fn times(self, factor: u64) -> Self {
        Self {
            per_byte: self.per_byte.saturating_mul(factor),
            fixed: self.fixed.saturating_mul(factor),
        }
    }
}

/// Bounds on the sizes of values, in bytes, and on the time of all expressions visited so far.
struct Estimate<'p> {
    plan: &'p Plan,
    rules: Vec<Option<Bound>>,
    computed: Vec<Option<Bound>>,
    time: Bound,
}

impl<'p> Estimate<'p> {
    fn spend(&mut self, time: Bound) {
        self.time = self.time.plus(time);
    }

    /// Bounds the size of a rule's value by the sum of the sizes of its branches' values. The value
    /// is one of these values or, for a set, contains all of them.
    fn rule(&mut self, slot: usize) -> Option<Bound> {
        if let Some(size) = self.rules.get(slot)? {
            return Some(*size);
        }
        let mut size = Bound::fixed(2);
        let branches: Vec<_> = match self.plan.rules.get(slot)? {
            Rule::Complete {
                definitions,
                default,
            } => {
                size = size.plus(Bound::fixed(bytes_of(default)));
                definitions.iter().flat_map(|one| &one.0).collect()
            }
            Rule::Set(elements) => elements.iter().collect(),
        };
        for branch in branches {
            for statement in &branch.body {
                self.size(&statement.expression)?;
            }
            size = size.plus(self.size(&branch.value)?);
        }
        // The values of definitions, and the elements of a set, are compared with each other.
        self.spend(size.times(COMPARE_NS));
        *self.rules.get_mut(slot)? = Some(size);
        Some(size)
    }

    /// Bounds the size of an expression's value, and adds the expression's time.
    fn size(&mut self, expression: &'p Expression) -> Option<Bound> {
        self.spend(Bound::fixed(STEP_NS));
        match expression {
            Expression::Constant(value) => Some(Bound::fixed(bytes_of(value))),
            Expression::Input(_) => Some(Bound {
                per_byte: 1,
                fixed: 0,
            }),
            Expression::Operation(operation) => self.operation(operation),
        }
    }

    fn operation(&mut self, operation: &'p Operation) -> Option<Bound> {
        match operation {
            Operation::Rule(slot) => self.rule(*slot),
            Operation::Computed(slot) => self.computed(*slot),
            Operation::Below(whole, _) => self.size(whole),
            Operation::Compare(_, [left, right]) => {
                let (left, right) = (self.size(left)?, self.size(right)?);
                // A comparison reads no further than the end of the shorter value.
                let shorter = match (left.per_byte, right.per_byte) {
                    (0, _) => left,
                    (_, 0) => right,
                    _ => left.plus(right),
                };
                self.spend(shorter.times(COMPARE_NS));
                Some(Bound::fixed(SMALL_BYTES))
            }
            Operation::Test(test, [text, part]) => {
                let (text, part) = (self.size(text)?, self.size(part)?);
                self.spend(Bound::fixed(CALL_NS).plus(match test {
                    // These compare no more bytes than the part has.
                    TextTest::StartsWith | TextTest::EndsWith => part,
                    TextTest::Contains => text.plus(part).times(4),
                }));
                Some(Bound::fixed(SMALL_BYTES))
            }
            Operation::In(membership) => self.membership(membership),
        }
    }

    fn sum(&mut self, items: impl Iterator<Item = &'p Expression>) -> Option<Bound> {
        let mut sum = Bound::fixed(2);
        for item in items {
            sum = sum.plus(self.size(item)?).plus(Bound::fixed(2));
        }
        self.spend(sum.times(COMPARE_NS));
        Some(sum)
    }

    fn membership(&mut self, membership: &'p Membership) -> Option<Bound> {
        if let Some(key) = &membership.key {
            let key = self.size(key)?;
            self.spend(key.times(COMPARE_NS));
        }
        let value = self.size(&membership.value)?;
        let compared = self.size(&membership.collection)?.plus(value);
        self.spend(compared.times(COMPARE_NS));
        Some(Bound::fixed(SMALL_BYTES))
    }

    fn computed(&mut self, slot: usize) -> Option<Bound> {
        if let Some(size) = self.computed.get(slot)? {
            return Some(*size);
        }
        let size = match self.plan.computed.get(slot)? {
            Computed::Call(call) => self.call(call),
            Computed::Array(items) | Computed::Set(items) => self.sum(items.iter()),
            Computed::Object(fields) => {
                self.sum(fields.iter().flat_map(|(key, value)| [key, value]))
            }
        }?;
        *self.computed.get_mut(slot)? = Some(size);
        Some(size)
    }

    fn call(&mut self, call: &'p Call) -> Option<Bound> {
        let sizes = call.arguments.iter().map(|argument| self.size(argument));
        let sizes: Vec<Bound> = sizes.collect::<Option<_>>()?;
        let (time, size) = of_call(call, &sizes)?;
        self.spend(time.plus(Bound::fixed(CALL_NS)));
        Some(size)
    }
}

/// Limit on the size of a boolean, a 64-bit number or a type's name as JSON, in bytes.
const SMALL_BYTES: u64 = 20;

/// The time of a call and the size of its result, by the sizes of its arguments. `None` for
/// functions that are not linear or were not measured.
fn of_call(call: &Call, sizes: &[Bound]) -> Option<(Bound, Bound)> {
    let all = sizes.iter().copied().fold(Bound::default(), Bound::plus);
    let first = sizes.first().copied().unwrap_or_default();
    let small = Bound::fixed(SMALL_BYTES);
    Some(match call.builtin.name {
        "is_array" | "is_boolean" | "is_null" | "is_number" | "is_object" | "is_set"
        | "is_string" | "type_name" => (Bound::default(), small),
        "count" => (first.times(2), small),
        "trim_prefix" | "trim_suffix" | "trim_space" => (first.times(2), first),
        // The other case of some characters consists of three characters.
        "lower" | "upper" => (first.times(40), first.times(3)),
        "split" => (all.times(100), first.times(3).plus(small)),
        "concat" => {
            let delimiter = text(call, 0)?;
            let size = sizes.get(1)?.times(size_of(delimiter).saturating_add(1));
            (size.times(15), size)
        }
        "replace" => {
            text(call, 1)?;
            let size = first.times(size_of(text(call, 2)?).saturating_add(1));
            (size.plus(first).times(30), size)
        }
        "sprintf" => {
            let format = text(call, 0)?;
            let verbs = format.match_indices('%');
            let is_plain = |(at, _): (usize, &str)| {
                let verb = format.as_bytes().get(at.saturating_add(1));
                matches!(verb, Some(b's' | b'v' | b'd'))
            };
            verbs.into_iter().all(is_plain).then_some(())?;
            // `sprintf` writes all digits of a number such as 1e308.
            (all.times(SPRINTF_NS), all.times(70))
        }
        "regex.match" => {
            let (per_byte, fixed) = pattern(text(call, 0)?)?;
            let matching = sizes.get(1)?.times(per_byte);
            (matching.plus(Bound::fixed(fixed)), small)
        }
        _ => return None,
    })
}

/// Time of `sprintf` for each byte of its arguments, in nanoseconds. The worst case is a number
/// such as 1e308, which has 5 bytes in the input and is written with more than 300 digits.
const SPRINTF_NS: u64 = 400;

/// The text of an argument; `None` unless the argument is a string literal.
fn text(call: &Call, argument: usize) -> Option<&str> {
    match call.arguments.get(argument)? {
        Expression::Constant(Value::String(text)) => Some(text),
        _ => None,
    }
}

/// The time for each byte that is matched against a pattern, and the time to compile the pattern,
/// in nanoseconds. A match can try each state of the pattern at each byte. `None` if the pattern is
/// invalid or exceeds the largest limit of [`PATTERN_BYTES`].
fn pattern(text: &str) -> Option<(u64, u64)> {
    let compiles = |bytes: &usize| RegexBuilder::new(text).size_limit(*bytes).build().is_ok();
    let bytes = PATTERN_BYTES.into_iter().find(compiles)?;
    let bytes = u64::try_from(bytes).ok()?;
    Some((bytes / PATTERN_BYTES_PER_NS, bytes.saturating_mul(10)))
}

/// Size of the part of a compiled pattern that can be tried in 1 ns, in bytes. A state has about 32
/// bytes, and it takes 2 ns to try a state.
const PATTERN_BYTES_PER_NS: u64 = 16;

/// The length of a value as JSON, in bytes.
fn bytes_of(value: &Value) -> u64 {
    let text = serde_json::to_string(value).unwrap_or_default();
    size_of(&text)
}

fn size_of(text: &str) -> u64 {
    u64::try_from(text.len()).unwrap_or(u64::MAX)
}
