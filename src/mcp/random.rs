//! Unguessable ids.

use addons::contract::Denial;
use aws_lc_rs::rand;

/// Generates 128 random bits in hexadecimal.
pub fn token() -> Result<String, Denial> {
    let mut bits = [0; 16];
    rand::fill(&mut bits).map_err(|_unspecified| Denial::internal())?;
    Ok(format!("{:032x}", u128::from_be_bytes(bits)))
}
