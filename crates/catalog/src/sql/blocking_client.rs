//! The driver of PostgreSQL and the runtime that carries its messages, which runs while somebody waits for an
//! answer.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::task::Poll;

use tokio::runtime::{Builder, Handle, Runtime, RuntimeFlavor};
use tokio::task::JoinHandle;
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Config, Socket, Statement};

use super::{DatabaseError, Result, Value};

/// Something to be done, and its values.
pub(super) type DeferredStatement = (Statement, Vec<Value>);

pub(super) struct BlockingClient {
    client: Client,
    /// Carries the messages; ends when the connection does.
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
        // Why it ended is told to those who wait for an answer, and to all who ask later.
        let carrier = runtime.spawn(async { drop(connection.await) });
        Ok(BlockingClient { client, connection_task: carrier, runtime })
    }

    pub(super) fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    pub(super) fn block_on<T>(&self, ask: impl AsyncFnOnce(&Client) -> T) -> T {
        leave_async_context(|| self.runtime.block_on(ask(&self.client)))
    }

    /// Sends orders, and a question behind them, before any answer is waited for. What the question comes to,
    /// if all that came before it was done.
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
            // The driver sends a message when it is first looked at.
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

    /// Returns when the server was told.
    pub(super) fn close(self) {
        let BlockingClient { client, connection_task: carrier, runtime } = self;
        drop(client);
        // Of a carrier that failed nothing is left to be told.
        let _ = runtime.block_on(carrier);
    }
}

/// One runtime may not wait where another runs its tasks, unless that is told.
fn leave_async_context<T>(ask: impl FnOnce() -> T) -> T {
    match Handle::try_current().map(|here| here.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(ask),
        _ => ask(),
    }
}
