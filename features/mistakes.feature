Feature: A wrong argument gets an error that says what to do, and changes nothing

  Scenario Outline: <mistake>
    Given the runtime
    When somebody gives <mistake>
    Then it is refused with <kind> that says "<advice>"
    And the runtime goes on, at the same revision

    Examples:
      | mistake                               | kind            | advice                                            |
      | an empty fragment id                  | InvalidArgument | give 1 to 512 characters                          |
      | negative tokens                       | InvalidArgument | a whole number, at least 1                        |
      | metadata of 10 MiB                    | InvalidArgument | at most 64 metadata entries, 16 KiB in all        |
      | a hot budget of zero                  | InvalidArgument | give a whole number, at least 1                   |
      | a path with '..'                      | InvalidArgument | relative to the project's root                    |
      | an absolute path                      | InvalidArgument | relative to the project's root                    |
      | an action name with spaces            | InvalidArgument | did you mean 'fix-bug'?                           |
      | no project in an unrestricted session | InvalidArgument | name a project                                    |
      | an empty list of projects             | InvalidArgument | leave it out for an unrestricted session          |
      | an address where nobody is            | RuntimeLost     | start one with `stepwell serve                    |
      | a question to no project              | InvalidArgument | name those to search with projects=               |
      | a data directory with other files     | StartFailed     | give a new or an empty directory                  |
      | eviction of nothing                   | InvalidArgument | count                                             |
      | a page of a million rows              | InvalidArgument | 1 to 1000 rows; follow its cursor                 |
