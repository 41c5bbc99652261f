"""Administration over HTTP: the policy, and the state of the installation. Access is in `service.http.auth`, deletion in `routes`."""
