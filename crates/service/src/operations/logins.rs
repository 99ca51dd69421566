//! Logins that need the slots of operations; the others are called on [`Operations::identity`].

use std::sync::Arc;

use longhaul_api::Problem;
use longhaul_identity::{Login, LoginReturn, Visitor};

use super::Operations;

impl Operations {
    /// Finishes a login at an issuer: the browser is back.
    pub async fn openid_finish(
        self: &Arc<Self>,
        name: &str,
        back: LoginReturn,
        visitor: &Visitor,
    ) -> Result<Login, Problem> {
        let returned = self.identity().openid_return(name, &back, visitor).await?;
        let visitor = visitor.clone();
        self.run(move |operations| operations.identity().openid_admit(returned, &visitor)).await
    }
}
