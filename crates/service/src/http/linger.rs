//! The end of a connection whose request could not be read, such as one with a head over its limit. The
//! client may still be sending: closed at once, its connection would be reset, and the reply that says why
//! lost.

use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// The longest time that a client has to read the reply and to close.
const LINGER_TIME: Duration = Duration::from_secs(2);
/// Bytes read and dropped at most meanwhile.
const LINGER_BYTES_MAX: u64 = 1 << 20;

/// Ends a stream so that what was written arrives: says that nothing more comes, and reads for a while what
/// the client still sends.
pub async fn linger(mut stream: impl AsyncRead + AsyncWrite + Unpin) {
    let end = async {
        stream.shutdown().await?;
        tokio::io::copy(&mut stream.take(LINGER_BYTES_MAX), &mut tokio::io::sink()).await
    };
    let _ = tokio::time::timeout(LINGER_TIME, end).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_was_written_arrives_though_the_client_still_sends() {
        let (mut client, mut server) = tokio::io::duplex(1 << 10);
        let sender = async {
            // More than fits: it is taken, though nobody wants it.
            client.write_all(&[0; 10 << 10]).await.unwrap();
            let mut reply = String::new();
            client.read_to_string(&mut reply).await.unwrap();
            drop(client);
            reply
        };
        let server = async {
            server.write_all(b"431").await.unwrap();
            linger(server).await;
        };
        let (reply, ()) = tokio::join!(sender, server);
        assert_eq!(reply, "431");
    }
}
