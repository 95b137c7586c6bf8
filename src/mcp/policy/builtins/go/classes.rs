//! The classes of characters in Go's regular expressions.

/// The classes that are written in brackets and colons.
pub(super) const ASCII_CLASSES: [&str; 14] = [
    "alnum", "alpha", "ascii", "blank", "cntrl", "digit", "graph", "lower", "print", "punct",
    "space", "upper", "word", "xdigit",
];
/// Unicode's categories, except those in which Go and the crate `regex` differ: `C` and `Cs`.
pub(super) const CATEGORIES: [&str; 35] = [
    "Cc", "Cf", "Co", "L", "Ll", "Lm", "Lo", "Lt", "Lu", "M", "Mc", "Me", "Mn", "N", "Nd", "Nl",
    "No", "P", "Pc", "Pd", "Pe", "Pf", "Pi", "Po", "Ps", "S", "Sc", "Sk", "Sm", "So", "Z", "Zl",
    "Zp", "Zs", "Any",
];
/// Some of Unicode's scripts.
pub(super) const SCRIPTS: [&str; 16] = [
    "Arabic",
    "Armenian",
    "Bengali",
    "Common",
    "Cyrillic",
    "Devanagari",
    "Georgian",
    "Greek",
    "Han",
    "Hangul",
    "Hebrew",
    "Hiragana",
    "Inherited",
    "Katakana",
    "Latin",
    "Thai",
];
