"""The real OpenClaw for tests: installed by name and version, run against a stand-in provider that plays a script.

`install` brings a version into a cache outside the repository, `support.model_apis.messages` is the stand-in for the paid model,
`plays` are the scripts it plays, `instance` runs the program with a state folder of its own. `scenarios` are what the import is tested with,
`played` the state folders that come of them. Nothing here imitates OpenClaw.
"""
