//! TLS between a bridge and Envoys on other hosts, with certificates on both sides.
//!
//! The bridge shows its certificate to the ingest listeners, and serves snapshots only to whoever shows one: each side
//! trusts what the same CA has signed. The secret is asked for as well.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::serve::Listener;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};
use tokio_rustls::server::TlsStream;

/// A client that has not shown its certificate by then is let go.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Handshakes under way and connections that wait to be served.
const WAITING: usize = 64;

/// The files, in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The CA that signed the certificates of all Envoys.
    pub ca: PathBuf,
    /// The bridge's certificate, with those between it and the CA.
    pub cert: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|e| format!("{}: {e}", path.display()))
}

fn wrong(path: &Path, what: impl std::fmt::Display) -> String {
    format!("{}: {what}: give PEM", path.display())
}

impl TlsFiles {
    /// Makes a client show the bridge's certificate, and trust the CA alone.
    pub fn client(&self, client: reqwest::ClientBuilder) -> Result<reqwest::ClientBuilder, String> {
        let ca = reqwest::Certificate::from_pem(&read(&self.ca)?).map_err(|e| wrong(&self.ca, e))?;
        let both = [read(&self.cert)?, b"\n".to_vec(), read(&self.key)?].concat();
        let identity = reqwest::Identity::from_pem(&both).map_err(|e| wrong(&self.key, e))?;
        Ok(client.use_rustls_tls().tls_built_in_root_certs(false).add_root_certificate(ca).identity(identity))
    }

    fn acceptor(&self) -> Result<TlsAcceptor, String> {
        let mut roots = RootCertStore::empty();
        for cert in CertificateDer::pem_file_iter(&self.ca).map_err(|e| wrong(&self.ca, e))? {
            roots.add(cert.map_err(|e| wrong(&self.ca, e))?).map_err(|e| wrong(&self.ca, e))?;
        }
        let clients = WebPkiClientVerifier::builder(roots.into()).build().map_err(|e| wrong(&self.ca, e))?;
        let chain = CertificateDer::pem_file_iter(&self.cert).map_err(|e| wrong(&self.cert, e))?;
        let chain = chain.collect::<Result<Vec<_>, _>>().map_err(|e| wrong(&self.cert, e))?;
        let key = PrivateKeyDer::from_pem_file(&self.key).map_err(|e| wrong(&self.key, e))?;
        let config = ServerConfig::builder().with_client_cert_verifier(clients).with_single_cert(chain, key);
        Ok(TlsAcceptor::from(Arc::new(config.map_err(|e| wrong(&self.cert, e))?)))
    }
}

/// A listener whose connections are through with their handshakes.
pub struct TlsListener {
    ready: mpsc::Receiver<(TlsStream<TcpStream>, SocketAddr)>,
    address: SocketAddr,
}

impl TlsListener {
    /// Shakes hands with whoever connects, several at a time, so that nobody waits for a slow one.
    pub fn new(listener: TcpListener, files: &TlsFiles) -> Result<TlsListener, String> {
        let acceptor = files.acceptor()?;
        let address = listener.local_addr().map_err(|e| e.to_string())?;
        let (give, ready) = mpsc::channel(WAITING);
        tokio::spawn(async move {
            while let Ok(place) = give.clone().reserve_owned().await {
                let Ok((stream, from)) = listener.accept().await else {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                };
                let acceptor = acceptor.clone();
                tokio::spawn(async move {
                    match timeout(HANDSHAKE, acceptor.accept(stream)).await {
                        Ok(Ok(stream)) => drop(place.send((stream, from))),
                        Ok(Err(error)) => tracing::warn!("{from}: {error}"),
                        Err(_) => tracing::warn!("{from}: no handshake"),
                    }
                });
            }
        });
        Ok(TlsListener { ready, address })
    }
}

impl Listener for TlsListener {
    type Io = TlsStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        match self.ready.recv().await {
            Some(connection) => connection,
            // The listener has ended with the bridge.
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        Ok(self.address)
    }
}
