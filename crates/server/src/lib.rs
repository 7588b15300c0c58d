//! The room of the HTTP API and the dashboard. Its door sign, until the server issue furnishes it: the server
//! answers, it decides nothing; it will see the store only as `dyn Store` from the core.
