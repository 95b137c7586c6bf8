use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;

use aws_lc_rs::encoding::{AsDer, Pkcs8V1Der};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa;
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair,
};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{EncodingKey, Header, encode};
use serde_json::json;
use tempfile::TempDir;
use testkit::each_row;

use super::*;

const NOW: i64 = 1_900_000_000;

fn now() -> OffsetDateTime {
    OffsetDateTime::from_unix_timestamp(NOW).unwrap()
}

/// A private key, with the algorithm of its tokens.
struct Signer {
    algorithm: Algorithm,
    key: EncodingKey,
    /// The public key, where the library cannot write it.
    public: Option<Value>,
}

impl Signer {
    fn ec() -> Self {
        let random = SystemRandom::new();
        let der = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).unwrap();
        Self {
            algorithm: Algorithm::ES256,
            key: EncodingKey::from_ec_der(der.as_ref()),
            public: None,
        }
    }

    fn ed() -> Self {
        let der = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
        let pair = Ed25519KeyPair::from_pkcs8(der.as_ref()).unwrap();
        let x = URL_SAFE_NO_PAD.encode(pair.public_key().as_ref());
        Self {
            public: Some(json!({ "kty": "OKP", "crv": "Ed25519", "x": x })),
            algorithm: Algorithm::EdDSA,
            key: EncodingKey::from_ed_der(der.as_ref()),
        }
    }

    fn rsa(algorithm: Algorithm) -> Self {
        let pair = rsa::KeyPair::generate(rsa::KeySize::Rsa2048).unwrap();
        let der: Pkcs8V1Der<'_> = pair.as_der().unwrap();
        // Without the header of PKCS #8, which has the same length for each key of this size.
        let der = &der.as_ref()[26..];
        Self {
            algorithm,
            key: EncodingKey::from_rsa_der(der),
            public: None,
        }
    }

    fn jwk(&self, id: &str) -> Value {
        let mut jwk = self.public.clone().unwrap_or_else(|| {
            let jwk = Jwk::from_encoding_key(&self.key, self.algorithm).unwrap();
            serde_json::to_value(jwk).unwrap()
        });
        jwk["kid"] = id.into();
        jwk
    }

    fn sign(&self, id: Option<&str>, claims: &Value) -> String {
        let mut header = Header::new(self.algorithm);
        header.kid = id.map(str::to_owned);
        encode(&header, claims, &self.key).unwrap()
    }
}

/// Verifies tokens with a file of keys.
struct Verifier {
    directory: TempDir,
    tokens: HumanTokens,
    settings: HumanJwt,
}

impl Verifier {
    fn of(keys: &[Value]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let settings = HumanJwt {
            jwks_file: directory.path().join("jwks.json"),
            issuer: "https://issuer.example.com".into(),
            audience: "unified-proxy".into(),
        };
        let verifier = Self {
            directory,
            tokens: HumanTokens::default(),
            settings,
        };
        verifier.write(&json!({ "keys": keys }).to_string());
        verifier
    }

    /// Replaces the file.
    fn write(&self, text: &str) {
        let written = self.directory.path().join("new");
        fs::write(&written, text).unwrap();
        // Whatever the umask.
        fs::set_permissions(&written, Permissions::from_mode(0o644)).unwrap();
        fs::rename(written, &self.settings.jwks_file).unwrap();
    }

    fn verify(&self, token: &str) -> Result<String, TokenError> {
        self.tokens.verify(&self.settings, token, now())
    }
}

fn claims() -> Value {
    json!({
        "iss": "https://issuer.example.com",
        "aud": "unified-proxy",
        "sub": "alice",
        "exp": NOW + 600,
    })
}

fn with(key: &str, value: Value) -> Value {
    let mut claims = claims();
    claims[key] = value;
    claims
}

fn without(key: &str) -> Value {
    let mut claims = claims();
    claims.as_object_mut().unwrap().remove(key);
    claims
}

fn base64(text: &str) -> String {
    URL_SAFE_NO_PAD.encode(text)
}

#[test]
fn a_token_of_each_kind_of_key_names_its_subject() {
    each_row(
        [
            Algorithm::ES256,
            Algorithm::EdDSA,
            Algorithm::RS256,
            Algorithm::PS512,
        ],
        |algorithm| {
            let signer = match algorithm {
                Algorithm::ES256 => Signer::ec(),
                Algorithm::EdDSA => Signer::ed(),
                _ => Signer::rsa(algorithm),
            };
            let verifier = Verifier::of(&[signer.jwk("a"), Signer::ec().jwk("b")]);
            let token = signer.sign(Some("a"), &claims());
            assert_eq!(verifier.verify(&token).as_deref(), Ok("alice"));
            // Another key of the file, none, and one that is not there.
            for id in [Some("b"), None, Some("c")] {
                let token = signer.sign(id, &claims());
                assert_eq!(
                    verifier.verify(&token),
                    Err(TokenError::Signature),
                    "{id:?}"
                );
            }
            let sole = Verifier::of(&[signer.jwk("a")]);
            let token = signer.sign(None, &claims());
            assert_eq!(sole.verify(&token).as_deref(), Ok("alice"));
        },
    );
}

#[test]
fn every_claim_must_be_there_have_the_right_type_and_be_valid_now() {
    let signer = Signer::ec();
    let verifier = Verifier::of(&[signer.jwk("a")]);
    let long = "x".repeat(257);
    each_row(
        [
            (claims(), None),
            (with("aud", json!(["other", "unified-proxy"])), None),
            (with("exp", json!(NOW as f64 + 0.5)), None),
            (with("nbf", json!(NOW + 30)), None),
            (with("iat", json!(NOW + 30)), None),
            (without("iss"), Some(TokenError::Claims)),
            (without("aud"), Some(TokenError::Claims)),
            (without("exp"), Some(TokenError::Claims)),
            (without("sub"), Some(TokenError::Claims)),
            (with("exp", json!("2000000000")), Some(TokenError::Claims)),
            (with("exp", Value::Null), Some(TokenError::Claims)),
            (with("nbf", json!("0")), Some(TokenError::Claims)),
            (with("sub", json!(1)), Some(TokenError::Claims)),
            (with("sub", json!("")), Some(TokenError::Claims)),
            (with("sub", json!("a\nb")), Some(TokenError::Claims)),
            (with("sub", json!(long)), Some(TokenError::Claims)),
            (with("aud", json!([])), Some(TokenError::Audience)),
            (
                with("aud", json!("unified-proxy2")),
                Some(TokenError::Audience),
            ),
            (with("aud", json!({ "a": 1 })), Some(TokenError::Claims)),
            (
                with("iss", json!("https://issuer.example.com/")),
                Some(TokenError::Issuer),
            ),
            (with("exp", json!(NOW - 60)), Some(TokenError::Expired)),
            (with("exp", json!(-1)), Some(TokenError::Expired)),
            (with("nbf", json!(NOW + 61)), Some(TokenError::Early)),
            (with("iat", json!(NOW + 61)), Some(TokenError::Early)),
            (json!([]), Some(TokenError::Signature)),
        ],
        |(claims, error)| {
            let verified = verifier.verify(&signer.sign(Some("a"), &claims));
            assert_eq!(verified.err(), error, "{claims}");
        },
    );
}

#[test]
fn the_algorithm_is_the_keys_whatever_the_token_says() {
    let signer = Signer::ec();
    let verifier = Verifier::of(&[signer.jwk("a")]);
    let token = signer.sign(Some("a"), &claims());
    let parts: Vec<&str> = token.split('.').collect();
    let (body, signature) = (parts[1], parts[2]);
    let headed = |header: &str, signature: &str| format!("{}.{body}.{signature}", base64(header));
    // Signed with the public key as the secret of an HMAC: everybody has that key.
    let public = signer.jwk("a")["x"].as_str().unwrap().to_owned();
    let secret = EncodingKey::from_secret(&URL_SAFE_NO_PAD.decode(&public).unwrap()).unwrap();
    let mut header = Header::new(Algorithm::HS256);
    header.kid = Some("a".to_owned());
    let confused = encode(&header, &claims(), &secret).unwrap();
    let file = fs::read(&verifier.settings.jwks_file).unwrap();
    let secret = EncodingKey::from_secret(&file).unwrap();
    let of_file = encode(&header, &claims(), &secret).unwrap();
    each_row(
        [
            (confused, TokenError::Signature),
            (of_file, TokenError::Signature),
            (
                headed(r#"{"alg":"none","kid":"a"}"#, ""),
                TokenError::Malformed,
            ),
            (
                headed(r#"{"alg":"None","kid":"a"}"#, signature),
                TokenError::Malformed,
            ),
            (
                headed(r#"{"alg":"ES384","kid":"a"}"#, signature),
                TokenError::Signature,
            ),
            (
                headed(r#"{"alg":"RS256","kid":"a"}"#, signature),
                TokenError::Signature,
            ),
            (headed(r#"{"kid":"a"}"#, signature), TokenError::Malformed),
            (
                headed(r#"{"alg":"ES256","alg":"none","kid":"a"}"#, signature),
                TokenError::Malformed,
            ),
            (
                headed(r#"{"alg":"ES256","kid":"a","crit":["exp"]}"#, signature),
                TokenError::Malformed,
            ),
            (
                headed(r#"{"alg":"ES256","kid":"a"}"#, ""),
                TokenError::Signature,
            ),
            (format!("{token}x"), TokenError::Signature),
            (format!("{token}.x"), TokenError::Malformed),
            (format!("{}.{body}", parts[0]), TokenError::Malformed),
            (String::new(), TokenError::Malformed),
            ("eyJ.".repeat(4096), TokenError::Malformed),
        ],
        |(token, error)| assert_eq!(verifier.verify(&token), Err(error), "{token}"),
    );
    assert!(verifier.verify(&token).is_ok());
    // A key that says for which algorithm it is verifies no other.
    let rsa = Signer::rsa(Algorithm::RS256);
    let mut other = rsa.jwk("r");
    other["alg"] = "RS512".into();
    let verifier = Verifier::of(&[other]);
    let token = rsa.sign(Some("r"), &claims());
    assert_eq!(verifier.verify(&token), Err(TokenError::Signature));
}

#[test]
fn keys_that_are_not_for_signatures_are_left_out_and_private_ones_refuse_the_file() {
    let good = Signer::ec();
    let edited = |key: &str, value: Value| {
        let mut jwk = good.jwk("a");
        jwk[key] = value;
        jwk
    };
    let symmetric = json!({ "kty": "oct", "k": "c2VjcmV0", "kid": "a", "alg": "HS256" });
    each_row(
        [
            ("usable", json!([good.jwk("a")]), true),
            ("use", json!([edited("use", json!("sig"))]), true),
            ("another use", json!([edited("use", json!("enc"))]), false),
            (
                "key_ops",
                json!([edited("key_ops", json!(["verify"]))]),
                true,
            ),
            (
                "other operations",
                json!([edited("key_ops", json!(["sign"]))]),
                false,
            ),
            (
                "the algorithm of another key",
                json!([edited("alg", json!("RS256"))]),
                false,
            ),
            (
                "a symmetric algorithm",
                json!([edited("alg", json!("HS256"))]),
                false,
            ),
            ("a private key", json!([edited("d", json!("AA"))]), false),
            ("a symmetric key", json!([symmetric]), false),
            (
                "the same kid twice",
                json!([good.jwk("a"), Signer::ed().jwk("a")]),
                false,
            ),
            ("no keys", json!([]), false),
            ("too many keys", json!(vec![good.jwk("a"); 33]), false),
            (
                "an unknown type beside",
                json!([{ "kty": "new" }, good.jwk("a")]),
                true,
            ),
        ],
        |(what, keys, is_accepted)| {
            let verifier = Verifier::of(&[]);
            verifier.write(&json!({ "keys": keys }).to_string());
            let verified = verifier.verify(&good.sign(Some("a"), &claims()));
            assert_eq!(verified.is_ok(), is_accepted, "{what}");
        },
    );
    let verifier = Verifier::of(&[good.jwk("a")]);
    for text in [
        "",
        "[]",
        "null",
        "{\"keys\":{}}",
        "{\"keys\":[],\"keys\":[]}",
    ] {
        verifier.write(text);
        let token = good.sign(Some("a"), &claims());
        assert_eq!(verifier.verify(&token), Err(TokenError::Keys), "{text}");
    }
}

#[test]
fn a_changed_file_counts_at_once_and_a_missing_or_long_one_ends_all_tokens() {
    let (old, new) = (Signer::ec(), Signer::ec());
    let verifier = Verifier::of(&[old.jwk("old")]);
    let tokens = [("old", &old), ("new", &new)];
    let [of_old, of_new] = tokens.map(|(id, signer)| signer.sign(Some(id), &claims()));
    assert!(verifier.verify(&of_old).is_ok());
    assert!(verifier.verify(&of_new).is_err());
    verifier.write(&json!({ "keys": [new.jwk("new")] }).to_string());
    assert!(verifier.verify(&of_old).is_err());
    assert!(verifier.verify(&of_new).is_ok());
    let padded = json!({ "keys": [new.jwk("new")], "x": "y".repeat(64 << 10) });
    verifier.write(&padded.to_string());
    assert_eq!(verifier.verify(&of_new), Err(TokenError::Keys));
    verifier.write(&json!({ "keys": [new.jwk("new")] }).to_string());
    assert!(verifier.verify(&of_new).is_ok());
    for mode in [0o664, 0o646] {
        let permissions = Permissions::from_mode(mode);
        fs::set_permissions(&verifier.settings.jwks_file, permissions).unwrap();
        let verified = verifier.verify(&of_new);
        assert_eq!(verified, Err(TokenError::Keys), "others may write it");
    }
    fs::remove_file(&verifier.settings.jwks_file).unwrap();
    assert_eq!(verifier.verify(&of_new), Err(TokenError::Keys));
}

#[test]
fn only_three_parts_of_base64url_look_like_a_token() {
    each_row(
        [
            ("eyJhbGciOiJIUzI1NiJ9.e30.c2ln", true),
            ("eyJhbGciOiJub25lIn0.e30.", true),
            ("eyJhbGciOiJIUzI1NiJ9.e30", false),
            ("eyJhbGciOiJIUzI1NiJ9.e30.c2ln.x", false),
            ("opaque", false),
            ("a.b.c", false),
            ("eyJ .e30.c2ln", false),
            ("", false),
        ],
        |(text, is_one)| assert_eq!(is_token(text), is_one, "{text}"),
    );
}
