//! Installation tokens of a GitHub App: one for each lease, and gone with it.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use addons::contract::{Container, Repo, SecretSource, System};
use addons::credentials::github_app::{Installation, Minted, owners, repos_of};
use addons::credentials::{Fetched, Token, TokenSource};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{RSA_PKCS1_SHA256, RsaKeyPair};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use http::{Request, Response};
use parking_lot::Mutex;
use rustls_pki_types::PrivateKeyDer;
use rustls_pki_types::pem::PemObject;
use time::OffsetDateTime;

use super::SystemClient;
use crate::config::GithubAppConfig;
use crate::secrets;

/// How long before its end a token is minted anew: GitHub's last an hour.
const AHEAD: Duration = Duration::from_secs(300);
/// How long a lease waits before it tries again what failed, or what GitHub refused.
const BACK_OFF: Duration = Duration::from_secs(10);

/// One App installation. Lives over reloads, as the tokens of leases do.
pub struct AppTokens {
    /// Told apart from other installations in what a lease owns.
    number: u64,
    name: Arc<str>,
    config: GithubAppConfig,
    key: Arc<dyn SecretSource>,
    client: Arc<SystemClient>,
    principal: Arc<System>,
    owner: OnceLock<String>,
}

/// What a lease owns: its token of each installation.
#[derive(Default)]
struct OfLease(Mutex<HashMap<u64, Arc<Slot>>>);

#[derive(Default)]
struct Slot {
    state: Mutex<State>,
    minting: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct State {
    token: Option<(Arc<Token>, OffsetDateTime)>,
    minted: Option<Instant>,
    failed: Option<(Instant, String)>,
}

impl AppTokens {
    pub fn new(name: &str, config: &GithubAppConfig, client: Arc<SystemClient>) -> Self {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        let principal = System {
            name: "github_app",
            hosts: vec![(config.installation.api.clone(), 443)],
            in_house: false,
        };
        Self {
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            name: name.into(),
            config: config.clone(),
            key: secrets::source(&config.private_key),
            client,
            principal: Arc::new(principal),
            owner: OnceLock::new(),
        }
    }

    /// Whether these are the tokens of such an entry.
    pub fn is(&self, name: &str, config: &GithubAppConfig) -> bool {
        *self.name == *name && self.config == *config
    }

    fn installation(&self) -> &Installation {
        &self.config.installation
    }

    fn slot(&self, container: &Container) -> Arc<Slot> {
        let owned = container.owned(OfLease::default);
        let mut slots = owned.0.lock();
        Arc::clone(slots.entry(self.number).or_default())
    }

    async fn mint(&self, container: &Arc<Container>) -> Fetched {
        let slot = self.slot(container);
        let _alone = slot.minting.lock().await;
        if let Some(token) = slot.state.lock().to_send() {
            return Ok(token);
        }
        if let Some(why) = slot.state.lock().must_wait() {
            return Err(why);
        }
        let made = match self.ask(container).await {
            Ok(minted) => {
                Token::new(&self.name, &minted.secret, []).map(|t| (Arc::new(t), minted.expires))
            }
            Err(why) => Err(why),
        };
        let mut state = slot.state.lock();
        match made {
            Ok((token, expires)) => {
                *state = State {
                    token: Some((Arc::clone(&token), expires)),
                    minted: Some(Instant::now()),
                    failed: None,
                };
                Ok(token)
            }
            Err(why) => {
                tracing::warn!(credential = %self.name, container = %container.id, "no installation token: {why}");
                state.failed = Some((Instant::now(), why.clone()));
                Err(why)
            }
        }
    }

    async fn ask(&self, container: &Container) -> Result<Minted, String> {
        let jwt = self.jwt()?;
        let repos = self.repos(container, &jwt).await?;
        let request = self.installation().token_request(&jwt, &repos)?;
        let response = self.send(request).await?;
        self.installation()
            .minted(container, response.status(), response.body())
    }

    /// Those of the installation's owner. Whose it is need not be asked where a container has
    /// repositories of one owner alone: GitHub's answer names what the token reaches.
    async fn repos<'c>(
        &self,
        container: &'c Container,
        jwt: &str,
    ) -> Result<Vec<&'c Repo>, String> {
        if let [owner] = owners(container).as_slice() {
            return Ok(repos_of(container, owner));
        }
        if self.owner.get().is_none() {
            let request = self.installation().owner_request(jwt)?;
            let response = self.send(request).await?;
            let owner = self
                .installation()
                .owner(response.status(), response.body())?;
            // Two that ask at once are told the same.
            let _ = self.owner.set(owner);
        }
        let owner = self.owner.get().map_or("", String::as_str);
        Ok(repos_of(container, owner))
    }

    async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, String> {
        let sent = self.client.send(&self.principal, request).await;
        sent.map_err(|error| error.to_string())
    }

    /// The App's own token, with which it asks for others.
    fn jwt(&self) -> Result<String, String> {
        const WRONG: &str = "the private key is no RSA key in PEM";
        let pem = self.key.read()?;
        let der = PrivateKeyDer::from_pem_slice(pem.as_bytes()).map_err(|_| WRONG)?;
        let key = match &der {
            PrivateKeyDer::Pkcs1(key) => RsaKeyPair::from_der(key.secret_pkcs1_der()),
            PrivateKeyDer::Pkcs8(key) => RsaKeyPair::from_pkcs8(key.secret_pkcs8_der()),
            _ => return Err(WRONG.to_owned()),
        };
        let key = key.map_err(|_| WRONG)?;
        let input = self.installation().signing_input(OffsetDateTime::now_utc());
        let mut signature = vec![0; key.public_modulus_len()];
        key.sign(
            &RSA_PKCS1_SHA256,
            &SystemRandom::new(),
            input.as_bytes(),
            &mut signature,
        )
        .map_err(|_| "the JWT could not be signed")?;
        Ok(format!("{input}.{}", URL_SAFE_NO_PAD.encode(signature)))
    }
}

impl State {
    fn to_send(&self) -> Option<Arc<Token>> {
        let (token, expires) = self.token.as_ref()?;
        let left = *expires - OffsetDateTime::now_utc();
        let waits = self.must_wait().is_some() && left.is_positive();
        (left > AHEAD || waits).then(|| Arc::clone(token))
    }

    fn must_wait(&self) -> Option<String> {
        let (at, why) = self.failed.as_ref()?;
        (at.elapsed() < BACK_OFF).then(|| why.clone())
    }
}

/// What the chain asks.
pub struct AppSource(pub Arc<AppTokens>);

impl TokenSource for AppSource {
    /// A token without repositories would be one for all of them.
    fn is_for(&self, container: &Container) -> bool {
        !container.repos.is_empty()
    }

    fn at_hand(&self, container: &Arc<Container>) -> Option<Arc<Token>> {
        self.0.slot(container).state.lock().to_send()
    }

    fn fetch<'a>(
        &'a self,
        container: &'a Arc<Container>,
    ) -> Pin<Box<dyn Future<Output = Fetched> + Send + 'a>> {
        Box::pin(self.0.mint(container))
    }

    fn refused(&self, container: &Container, token: &Arc<Token>) {
        let slot = self.0.slot(container);
        let mut state = slot.state.lock();
        let is_young = state.minted.is_some_and(|at| at.elapsed() < BACK_OFF);
        let is_this = matches!(&state.token, Some((own, _)) if Arc::ptr_eq(own, token));
        if is_this && !is_young {
            state.token = None;
        }
    }
}
