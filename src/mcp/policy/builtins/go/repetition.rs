//! Repetitions in Go's regular expressions.

/// The greatest number of a repetition in Go, and the greatest product of nested ones.
pub(super) const MAX_REPETITION: u32 = 1000;

/// What a repetition would repeat.
#[derive(Clone, Copy, Default)]
pub(super) enum Last {
    #[default]
    Nothing,
    /// An expression with nested repetitions of this product.
    Expression(u32),
    /// An expression with flags behind it.
    Flags(u32),
    /// A repetition, which Go does not repeat.
    Repetition(u32),
}

impl Last {
    pub(super) fn repetitions(self) -> u32 {
        match self {
            Self::Nothing => 1,
            Self::Expression(product) | Self::Flags(product) | Self::Repetition(product) => product,
        }
    }
}

/// Bounds of a repetition, the upper one `None` without a limit.
pub(super) type Bounds = (u32, Option<u32>);

/// Reads a repetition such as `2,3}`. `None` if the text is none; no bounds if they are invalid.
pub(super) fn repetition(text: &str) -> Option<(Option<Bounds>, &str)> {
    let (bounds, rest) = text.split_once('}')?;
    let (least, most) = match bounds.split_once(',') {
        Some((least, "")) => (least, None),
        Some((least, most)) => (least, Some(most)),
        None => (bounds, Some(bounds)),
    };
    let is_number = |text: &str| {
        !text.is_empty()
            && text.bytes().all(|byte| byte.is_ascii_digit())
            && (text == "0" || !text.starts_with('0'))
    };
    if !is_number(least) || !most.is_none_or(is_number) {
        return None;
    }
    let number = |text: &str| text.parse().ok().filter(|number| *number <= MAX_REPETITION);
    let bounds = match most {
        Some(most) => number(least)
            .zip(number(most))
            .filter(|(least, most)| least <= most),
        None => number(least).map(|least| (least, 0)),
    };
    let bounds = bounds.map(|(least, limit)| (least, most.map(|_| limit)));
    Some((bounds, rest))
}
