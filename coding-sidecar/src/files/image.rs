//! Recognizes the images that `read` returns, by their first bytes.

/// The MIME type of a PNG, JPEG, GIF or WebP image that begins with `head`; `None` for other files.
///
/// Valid UTF-8 without NUL is not taken for an image, even if it begins like one: the beginning of
/// a real image contains NUL or invalid UTF-8.
pub(super) fn mime_type(head: &[u8]) -> Option<&'static str> {
    let mime_type = if head.starts_with(b"\x89PNG\r\n\x1a\n") {
        "image/png"
    } else if head.starts_with(b"\xff\xd8\xff") {
        "image/jpeg"
    } else if head.starts_with(b"GIF87a") || head.starts_with(b"GIF89a") {
        "image/gif"
    } else if head.starts_with(b"RIFF") && head.get(8..12) == Some(b"WEBP") {
        "image/webp"
    } else {
        return None;
    };
    (!is_text(head)).then_some(mime_type)
}

fn is_text(head: &[u8]) -> bool {
    let utf8 = match std::str::from_utf8(head) {
        Ok(_) => true,
        // The end of `head` may be within a character.
        Err(error) => error.error_len().is_none(),
    };
    utf8 && !head.contains(&0)
}
