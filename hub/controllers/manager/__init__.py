"""The controller manager: creates the controllers and connects them with the change log and the timetable."""
