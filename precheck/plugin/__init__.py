"""The pytest plugin: options, markers, fixtures, reports. No other part of precheck imports pytest."""
