//! The effects of decisions.

/// What a decision of a policy or a rule does with a message or a request, from the most lenient to
/// the strictest. Of several decisions, the strictest counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effect {
    /// It passes.
    Allow,
    /// It passes after a part of it was replaced.
    Redact,
    /// A person decides.
    Ask,
    /// It is denied.
    DenyContinue,
    /// It is denied, and the abort latch of the container is set: see
    /// [`Container::is_aborted`](super::Container::is_aborted).
    DenyAbort,
}

impl Effect {
    /// Every effect, from the most lenient to the strictest.
    pub const ALL: [Self; Self::DenyAbort as usize + 1] = [
        Self::Allow,
        Self::Redact,
        Self::Ask,
        Self::DenyContinue,
        Self::DenyAbort,
    ];

    /// The decision as policies, metrics, the audit and denials name it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Redact => "redact",
            Self::Ask => "ask",
            Self::DenyContinue => "deny_continue",
            Self::DenyAbort => "deny_abort",
        }
    }

    /// The effect of this name; `None` if there is none.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|effect| effect.as_str() == name)
    }
}

#[cfg(test)]
mod tests {
    use testkit::each_row;

    use super::*;

    #[test]
    fn effects_are_named_and_ordered_by_strictness() {
        let names = ["allow", "redact", "ask", "deny_continue", "deny_abort"];
        each_row(names.into_iter().zip(Effect::ALL), |(name, effect)| {
            assert_eq!(effect.as_str(), name);
            assert_eq!(Effect::named(name), Some(effect));
        });
        assert!(Effect::ALL.is_sorted_by(|one, next| one < next));
        each_row(["", "Allow", "deny", "deny_abort "], |name| {
            assert_eq!(Effect::named(name), None);
        });
    }
}
