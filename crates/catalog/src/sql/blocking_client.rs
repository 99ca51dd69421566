//! A blocking client of PostgreSQL: the asynchronous driver with a runtime of its own, which runs while a
//! caller waits.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;

use tokio::runtime::{Builder, Handle, Runtime, RuntimeFlavor};
use tokio::task::JoinHandle;
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Config, Socket, Statement};

use super::{DatabaseError, Result, Value};

/// A statement without a result, and its parameters.
pub(super) type DeferredStatement = (Statement, Vec<Value>);

pub(super) struct BlockingClient {
    client: Client,
    /// Drives the connection; ends with it.
    connection_task: JoinHandle<()>,
    runtime: Runtime,
}

impl BlockingClient {
    pub(super) fn open<T>(config: &Config, tls: T) -> Result<BlockingClient>
    where
        T: MakeTlsConnect<Socket>,
        T::Stream: Send + 'static,
    {
        let runtime = Builder::new_current_thread().enable_all().build().map_err(DatabaseError::Runtime)?;
        let (client, connection) = leave_async_context(|| runtime.block_on(config.connect(tls)))?;
        // The driver reports why it ended to every pending and later request.
        let carrier = runtime.spawn(async { drop(connection.await) });
        Ok(BlockingClient { client, connection_task: carrier, runtime })
    }

    pub(super) fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    pub(super) fn block_on<T>(&self, ask: impl AsyncFnOnce(&Client) -> T) -> T {
        leave_async_context(|| self.runtime.block_on(ask(&self.client)))
    }

    /// Pipelines deferred statements and a query: all are sent before any answer is awaited, in one round
    /// trip. Returns the query's result if every statement before it succeeded.
    pub(super) fn pipeline<T>(
        &self,
        orders: &[DeferredStatement],
        ask: impl AsyncFnOnce(&Client) -> Result<T>,
    ) -> Result<T> {
        self.block_on(async |client| {
            let sent = orders.iter().map(|(statement, values)| {
                let values: Vec<&(dyn ToSql + Sync)> =
                    values.iter().map(|value| value as &(dyn ToSql + Sync)).collect();
                Box::pin(async move { client.execute(statement, &values).await })
                    as Pin<Box<dyn Future<Output = std::result::Result<u64, tokio_postgres::Error>> + '_>>
            });
            let (mut sent, mut ask) = (sent.collect::<Vec<_>>(), pin!(ask(client)));
            // The driver sends a message at the first poll.
            let (early, answer) = poll_fn(|cx| {
                let early: Vec<_> = sent.iter_mut().map(|order| order.as_mut().poll(cx)).collect();
                Poll::Ready((early, ask.as_mut().poll(cx)))
            })
            .await;
            for (order, early) in sent.into_iter().zip(early) {
                match early {
                    Poll::Ready(done) => done?,
                    Poll::Pending => order.await?,
                };
            }
            match answer {
                Poll::Ready(answer) => answer,
                Poll::Pending => ask.await,
            }
        })
    }

    /// Closes the connection; returns when the server has been told.
    pub(super) fn close(self) {
        let BlockingClient { client, connection_task: carrier, runtime } = self;
        drop(client);
        // A failed connection has nothing left to send.
        let _ = runtime.block_on(carrier);
    }
}

/// Tells a multi-threaded runtime around us that this thread blocks: one runtime may not block inside
/// another's task.
fn leave_async_context<T>(ask: impl FnOnce() -> T) -> T {
    match Handle::try_current().map(|here| here.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(ask),
        _ => ask(),
    }
}
